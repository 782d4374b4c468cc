"""A program of the user's own in the place of our trainer: what the spec says of it, and its result in our terms.

It trains, and does nothing else: smoke tests are ours on every backend, and there is nothing to evaluate.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import yaml

from trainpkg import template
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head import history
from trainpkg.launch.head.outcome import Outcome
from trainpkg.launch.spec import Spec


def fields_of_spec(run: Run, stage: str, run_dir: Path) -> dict[str, Any]:
    """The spec's fields on what ranks run. Raises UserError where the program is absent, or has no such stage."""
    launch = run.launch
    found = {"backend": launch.backend, "command": launch.command, "oversubscribe": launch.oversubscribe}
    if run.own_program and stage == "evaluate":
        raise UserError(
            f"run {run.run!r} trains a program of its own ({'entry' if run.entry else 'launch.command'}), and has no "
            "evaluation: what it finds out it must write itself"
        )
    if stage != "train":
        return found | ({"backend": "spawn", "command": None} if launch.foreign else {})
    return found | {"script": script_words(run), **files(run, run_dir)}


def files(run: Run, run_dir: Path) -> dict[str, Any]:
    """What it writes, as absolute paths."""
    if run.entry is None:
        return {}

    def full(text: str) -> str:
        return str(Path(template.fill(text, {"run": run.run, "run_dir": str(run_dir)})).absolute())

    metrics = run.entry.metrics
    return {"outputs": [full(text) for text in run.entry.outputs], "metrics": full(metrics) if metrics else None}


def script_words(run: Run) -> list[str]:
    """What follows `python -u` in each rank; placeholders stand in the arguments alone."""
    if run.entry is None or run.launch.foreign:
        return []
    if run.entry.script is None:
        return ["-m", _literal(str(run.entry.module)), *run.entry.args]
    if absent := absent_script(run):
        raise UserError(absent)
    return [_literal(str(Path(run.entry.script))), *run.entry.args]


def absent_script(run: Run) -> str:
    """What to say where the file that ranks run is not there; empty where it is, or where there is none."""
    script = None if run.entry is None or run.launch.foreign else run.entry.script
    if script is None or Path(script).is_file():
        return ""
    return f"entry.script = {script!r}: there is no such file (looked for from {Path.cwd()})"


def absent_module(run: Run) -> str:
    """What to say where this Python does not find the module that ranks run. Imports nothing of it.

    Files and folders are looked at: what a package's own code makes of its path when it is imported is not known.
    """
    name = None if run.entry is None or run.launch.foreign else run.entry.module
    if name is None:
        return ""
    before = run.launch.env_prepend.get("PYTHONPATH", "").split(":")
    first, *parts = name.split(".")
    # Installed in editable form it may be known to a finder of its own alone.
    spec = PathFinder.find_spec(first, [str(Path.cwd()), *filter(None, before), *sys.path]) or importlib.util.find_spec(
        first
    )
    for part in parts:
        spec = spec and PathFinder.find_spec(part, list(spec.submodule_search_locations or ()))
    inside = spec.submodule_search_locations if spec else None
    if spec and (inside is None or PathFinder.find_spec("__main__", list(inside))):
        return ""
    why = f"{name!r} is a package without __main__" if spec else "there is no such module"
    return (
        f"entry.module = {name!r}: {why} (looked for from {Path.cwd()} and in what {sys.executable} has installed); "
        "where nodes have another Python, say so by launch.python, launch.wrapper or launch.prologue"
    )


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def conclude(spec: Spec, outcome: Outcome, began: float) -> None:
    """The result of a program that has ended well; one that has not left behind what it should has failed."""
    absent = absent_outputs(spec.outputs)
    launches = Path(spec.launch_dir).parent
    first = history.read_attempt(launches, history.attempts(launches)[0]).get("start", 0.0)
    older = [path for path in map(Path, spec.outputs) if not absent and path.is_file() and path.stat().st_ctime < first]
    if not absent and not older:
        write_result(spec, outcome, began)
        return
    outcome.verdict, outcome.status = "failed", 1
    what = f"{absent[0]} is not there" if absent else f"{older[0]} is older than the run, so another one's"
    more = len(absent or older) - 1
    what += f" (as with {more} more)" if more else ""
    outcome.sentence = f"the program has ended with status 0, but {what}: entry.outputs says that it leaves that behind"


def absent_outputs(outputs: list[str]) -> list[Path]:
    return [path for path in map(Path, outputs) if not is_there(path)]


def is_there(path: Path) -> bool:
    """Whether a file of another node is there: reading the folder refreshes what a network file system remembers."""
    with contextlib.suppress(OSError):
        list(path.parent.iterdir())
    return path.exists()


def write_result(spec: Spec, outcome: Outcome, began: float) -> None:
    """train.json of a program that writes none of ours: that it is done, where it ran, how long, what it left."""
    config = yaml.safe_load(Path(spec.config_path).read_text())
    plan = json.loads((spec.generation_dir(outcome.generations - 1) / "plan.json").read_text())
    nodes = plan["nodes"]
    result = {
        "run": spec.run,
        "recipe": config.get("recipe"),
        "fingerprint": config.get("fingerprint"),
        "status": "finished",
        "attempt": spec.attempt,
        "generation": outcome.generations - 1,
        "world_size": plan["world_size"],
        "num_nodes": len(nodes),
        "gpus_per_node": [node["num_ranks"] for node in nodes],
        "device": plan.get("device"),
        "hosts": [node["host"] for node in nodes],
        "started": began,
        "ended": time.time(),
        "time_s": round(time.time() - began, 3),
    }
    if spec.outputs:
        result["output_bytes"] = {path: Path(path).stat().st_size for path in spec.outputs}
    out = Path(spec.out)
    beside = out.with_name(f".{out.name}.new")
    beside.write_text(json.dumps(result, indent=1) + "\n")
    beside.replace(out)
