"""What the keys of how ranks start may say together: launch.backend, .command, .oversubscribe, and the section entry.

A setting that nothing would read is refused, with what reads it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trainpkg import template

if TYPE_CHECKING:
    from trainpkg.config.run import Run

OPTIONAL = ("entry", "task", "task_kwargs", "model", "data", "train")  # keys of a run that may be absent
# what a program of the user's own takes the place of
OURS = (
    "task",
    "task_kwargs",
    "model",
    "data",
    "optim",
    "ema",
    "train",
    "strategy",
    "sequence_parallel",
    "ddp",
    "fsdp",
    "profile",
    "seed",
)
# what else our trainer alone reads; config.yaml may have it for the runs that it trains
OURS_IN_CONFIG = (
    "checkpoint.",
    "logging.",
    "evaluate.",
    "launch.collective_timeout_s",
    "launch.progress_timeout_s",
    "launch.end_timeout_s",
    "launch.save_grace_s",
)
NOT_READ = "this run trains a program of your own (entry or launch.command), which does not read it"
MAX_C10D_NODES = 8192  # each node is told the order of all of them in one bounded line
CHOSEN_BY_C10D = ("master_addr", "master_port", "dist_url")


def disagreements(run: Run) -> list[str]:
    """Sentences on what these keys must not say."""
    return [*_command(run), *_entry(run), *_backend(run)]


def unread(run: Run, given: Iterable[str]) -> list[str]:
    """Of the keys that a run's own recipe and row give, those that nothing reads where its program is the user's."""
    return [key for key in given if key.startswith(OURS_IN_CONFIG)] if run.own_program else []


def missing(run: Run) -> list[str]:
    """Sentences on keys that only a program of the user's own could do without."""
    if run.own_program:
        return []
    return [
        f"{name} is missing: {type(run).model_fields[name].description} Only a program of your own needs none "
        "(section entry, or a launch.command without {entry})"
        for name in ("task", "model", "data", "train")
        if getattr(run, name) is None
    ]


def _command(run: Run) -> Iterator[str]:
    line, backend = run.launch.command, run.launch.backend
    if backend == "command" and not (line or "").strip():
        yield "launch.backend = 'command' needs launch.command: the line that starts your program on each node"
    if line is None:
        return
    if backend != "command":
        yield f"launch.command = {line!r}: launch.backend = {backend!r} does not read it; is it backend: command?"
    try:
        shlex.split(line)
    except ValueError as error:
        yield f"launch.command = {line!r} cannot be split as a shell would: {error}"
    if why := template.trouble(line, template.COMMAND):
        yield f"launch.command = {line!r}: {why}"


def _entry(run: Run) -> Iterator[str]:
    if run.own_program:
        what = "entry" if run.entry is not None else "launch.command without {entry}"
        for name in OURS:
            if getattr(run, name) != type(run).model_fields[name].default:
                yield f"{name} is given, but {what} names a program of your own, which does not read it"
    if run.entry is None:
        return
    script, module = run.entry.script, run.entry.module
    if (script is None) == (module is None) and not run.launch.foreign:
        yield f"entry.script = {script!r} and entry.module = {module!r}: one of the two is needed"
    for name, text in [("metrics", run.entry.metrics or ""), *(("outputs", text) for text in run.entry.outputs)]:
        if why := template.trouble(text, template.OF_RUN):
            yield f"entry.{name}: {text!r}: {why}"
    if run.entry.metrics == "{run_dir}/metrics.jsonl":
        yield (
            f"entry.metrics = {run.entry.metrics!r} is the file that lines are brought into: give the program's own "
            "another name, or call trainpkg.log"
        )
    for word in run.entry.args:
        if why := template.trouble(word, template.RANK):
            yield f"entry.args: {word!r}: {why}"
        elif run.launch.backend == "torchrun" and (used := set(template.names_in(word)) & set(CHOSEN_BY_C10D)):
            yield (
                f"entry.args: {word!r}: with launch.backend = 'torchrun' the ranks meet where c10d says, not at "
                f"{{{min(used)}}}; read MASTER_ADDR and MASTER_PORT, or take torchrun-static"
            )
    if run.launch.foreign and run.launch.command and (script or module or run.entry.args):
        yield (
            f"entry is given, but launch.command = {run.launch.command!r} has no {{entry}} where your program would "
            "come in"
        )


def _backend(run: Run) -> Iterator[str]:
    launch = run.launch
    if launch.backend == "torchrun" and launch.nodes > MAX_C10D_NODES:
        yield (
            f"launch.nodes = {launch.nodes} with launch.backend = 'torchrun': c10d orders the nodes itself, and that "
            f"order is told to at most {MAX_C10D_NODES} of them; take torchrun-static or spawn"
        )
    if launch.oversubscribe and launch.dist_backend != "gloo":
        yield (
            f"launch.oversubscribe = True with launch.dist_backend = {launch.dist_backend!r}: nccl refuses two ranks "
            "on one GPU (Duplicate GPU detected); set launch.dist_backend: gloo"
        )
    elif launch.oversubscribe and launch.device == "cpu":
        yield "launch.oversubscribe = True has no effect with launch.device = 'cpu': any number of ranks share the CPUs"
