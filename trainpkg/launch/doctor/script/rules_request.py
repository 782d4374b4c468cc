"""Rules on the first line, the #SBATCH lines and the options of sbatch and srun."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from trainpkg.launch.doctor.rows import WARN
from trainpkg.launch.doctor.script.findings import Found, Rule
from trainpkg.launch.doctor.script.options import SBATCH, SRUN, Option, Table
from trainpkg.launch.doctor.script.reading import Script

_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


def first_line(script: Script) -> Iterator[Found]:
    if script.raw.startswith("\ufeff"):
        yield Found(1, "the file begins with a byte order mark, so its first line is no `#!` line", "Save it without.")
    elif not script.raw.startswith("#!"):
        why = "sbatch refuses a script whose first line does not begin with #!"
        yield Found(1, why, "Begin the file with `#!/bin/bash`, with nothing above it.")


def line_ends(script: Script) -> Iterator[Found]:
    if "\r\n" in script.raw:
        line = script.raw[: script.raw.index("\r\n")].count("\n") + 1
        yield Found(line, "sbatch refuses scripts with DOS line ends (\\r\\n)", "Convert it: sed -i 's/\\r$//' FILE")


def dead_lines(script: Script) -> Iterator[Found]:
    """#SBATCH lines that sbatch takes for comments."""
    for directive in script.directives:
        if any(directive.line in body for body in script.bodies) or not directive.dead:
            continue
        if directive.dead.startswith("after"):
            why = f"sbatch does not read this line: it stands {directive.dead}"
            yield Found(directive.line, why, "Move it up, above the first command.")
            continue
        match = re.search(r"--?([A-Za-z-]+)", directive.text)
        name = SBATCH.letters.get(match[1], match[1]) if match else ""
        if name not in script.request.options:
            why = f"sbatch does not read this line: {directive.dead}"
            yield Found(
                directive.line, why, "Write `#SBATCH` at the beginning of the line (or `##` to silence it).", WARN
            )


def variables_in_directives(script: Script) -> Iterator[Found]:
    for directive in script.directives:
        for option in directive.options:
            if option.name in ("wrap", "comment", "") or not option.value:
                continue
            if match := re.search(r"\$(\{?[A-Za-z_]\w*\}?|\()", option.value):
                why = f"sbatch expands nothing in #SBATCH lines: {match[0]!r} stays as it is written"
                fix = "Write the value out, use sbatch's own patterns (%j, %x, %A_%a), or give it on the command line."
                yield Found(directive.line, why, fix)


def _all_options(script: Script) -> Iterator[tuple[int, Table, Option]]:
    for directive in script.directives:
        for option in directive.options:
            yield directive.line, SBATCH, option
    for step in script.steps:
        for option in step.options:
            yield step.line, SRUN, option


def unknown_options(script: Script) -> Iterator[Found]:
    for line, table, option in _all_options(script):
        written = option.written.lstrip("-")
        if option.written.startswith("--") and not option.name:
            yield from _unknown(line, table, written, option.candidates)
        elif option.candidates and option.name != written:
            why = f"{option.written} is taken for --{option.name} today; another version may have a second such option"
            yield Found(line, why, f"Write --{option.name}.", WARN)


def _unknown(line: int, table: Table, written: str, candidates: tuple[str, ...]) -> Iterator[Found]:
    other = SRUN if table is SBATCH else SBATCH
    if len(candidates) > 1:
        shown = ", ".join(f"--{name}" for name in candidates[:6])
        why = f"--{written} is ambiguous for {table.program}: it may be {shown}"
        yield Found(line, why, f"Write it out, such as --{min(candidates, key=len)}.")
        return
    near = [name for name in table.takes if name == written.replace("_", "-").lower()]
    near = near or difflib.get_close_matches(written, list(table.takes), n=1, cutoff=0.85)
    if written in other.takes:
        fix = f"Give it to {other.program} instead." if table is SBATCH else "Give it to sbatch, in an #SBATCH line."
        yield Found(line, f"--{written} is an option of {other.program}, which {table.program} does not know", fix)
    elif near:
        yield Found(line, f"{table.program} has no option --{written}", f"Write --{near[0]}.")


def gpu_as_type(script: Script) -> Iterator[Found]:
    for line, _, option in _all_options(script):
        value = option.value or ""
        if option.name in _GPU_OPTIONS and re.match(r"gpu(:|$)", value):
            number = value.partition(":")[2] or "1"
            why = f"--{option.name}={value} asks for GPUs of the type `gpu`, which no node has: the job never starts"
            yield Found(line, why, f"Write --{option.name}={number}, or --gres={value}.")
        if option.name == "gres" and re.fullmatch(r"\d+", value):
            yield Found(line, f"--gres={value} names no resource, and is refused", f"Write --gres=gpu:{value}.")


def memory_kinds(script: Script) -> Iterator[Found]:
    asked = [name for name in _MEMORY if name in script.request.options]
    if len(asked) > 1 and not script.request.heterogeneous:
        line = max(script.request.lines[name] for name in asked)
        why = f"--{' and --'.join(asked)} exclude each other, and sbatch refuses both together"
        yield Found(line, why, f"Keep one of them, such as --{asked[0]}.")
    scrubbed = re.search(r"unset\s.*SLURM_|env\s+-i\b|env\s+-u\s+SLURM_MEM|--export=NONE", script.raw)
    for call in script.calls:
        if call.program != "sbatch" or not asked or scrubbed:
            continue
        inner = [name for name in _MEMORY if re.search(rf"(?:^|\s)--{name}(?:[=\s]|$)", call.text)]
        if inner and inner[0] != asked[0]:
            why = (
                f"the new job inherits this one's memory variable (from --{asked[0]}) beside its own --{inner[0]}: its "
                "srun ends with `SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive`"
            )
            fix = "Submit with a clean environment: `env -u SLURM_MEM_PER_NODE -u SLURM_MEM_PER_CPU sbatch ...`."
            yield Found(call.line, why, fix)


def exported_environment(script: Script) -> Iterator[Found]:
    asked = script.request
    steps = [step for step in script.steps if not step.captured]
    healed = "SLURM_EXPORT_ENV" in script.raw or any(step.given("export") for step in steps)
    if (asked.options.get("export") or "").upper() in ("NONE", "NIL") and steps and not healed:
        why = "srun inherits --export=NONE: its tasks get nothing that this script exports, not even PATH"
        yield Found(asked.lines["export"], why, "Add `unset SLURM_EXPORT_ENV` at the top, or `srun --export=ALL`.")
    for step in steps:
        value = step.value("export") or ""
        if (
            value
            and not re.search(r"\bALL\b", value, re.IGNORECASE)
            and value.upper() != "NONE"
            and "$" not in value[:1]
        ):
            why = f"--export={value} gives the tasks these variables and nothing else that is exported, not even PATH"
            yield Found(step.line, why, f"Write --export=ALL,{value}.", WARN)


def requeue_log(script: Script) -> Iterator[Found]:
    asked = script.request
    by_hand = [call for call in script.calls if call.program == "scontrol" and call.words[1:2] == ("requeue",)]
    lines = [asked.lines["requeue"]] if "requeue" in asked.options else [call.line for call in by_hand[:1]]
    if lines and not (asked.options.get("open-mode") or "").startswith("a"):
        why = "a requeued job truncates its log: what the first part said is lost"
        yield Found(lines[0], why, "Add `#SBATCH --open-mode=append`.", WARN)
    for call in by_hand:
        boxed = call.step and (
            any("container" in option.written for option in call.step.options)
            or any(
                outer.program in ("singularity", "apptainer", "podman", "docker", "shifter")
                for outer in call.step.calls
            )
        )
        if boxed:
            why = "inside the container there is no scontrol: the requeue fails with `command not found`"
            yield Found(
                call.line, why, "End the step with a status of its own, and requeue from the batch script by it."
            )


def fewer_tasks_than_nodes(script: Script) -> Iterator[Found]:
    asked = script.request
    tasks, nodes = asked.number("ntasks"), asked.nodes
    if tasks and nodes and tasks < nodes and not asked.heterogeneous:
        why = f"{tasks} task(s) cannot run on {nodes} nodes: sbatch cuts the job to {tasks} node(s) with a mere warning"
        yield Found(asked.lines["ntasks"], why, f"Ask for --ntasks={nodes} (or --ntasks-per-node=1) for {nodes} nodes.")


RULES = (
    Rule("first-line", first_line, "sbatch wants `#!` first"),
    Rule("line-ends", line_ends, "DOS line ends"),
    Rule("dead-lines", dead_lines, "#SBATCH lines that sbatch does not read"),
    Rule("variables-in-directives", variables_in_directives, "variables in #SBATCH lines"),
    Rule("unknown-options", unknown_options, "unknown, ambiguous or abbreviated options of sbatch and srun"),
    Rule("gpu-as-type", gpu_as_type, "`gpu` written where a type or a number belongs"),
    Rule("memory-kinds", memory_kinds, "kinds of memory limits that exclude each other"),
    Rule("exported-environment", exported_environment, "steps that lose the environment"),
    Rule("requeue-log", requeue_log, "requeueing that loses the log or finds no scontrol"),
    Rule("fewer-tasks-than-nodes", fewer_tasks_than_nodes, "nodes that sbatch takes away again"),
)
