"""A program of the user's own in the place of our trainer: what the spec says of it, and its result in our terms.

It trains, and does nothing else: smoke tests are ours on every backend, and there is nothing to evaluate.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head.outcome import Outcome
from trainpkg.launch.spec import Spec


def fields_of_spec(run: Run, stage: str) -> dict[str, Any]:
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
    return found | {"script": script_words(run)}


def script_words(run: Run) -> list[str]:
    """What follows `python -u` in each rank; placeholders stand in the arguments alone."""
    if run.entry is None:
        return []
    if run.entry.script is None:
        return ["-m", _literal(str(run.entry.module)), *run.entry.args]
    path = Path(run.entry.script)
    if not path.is_file():
        raise UserError(f"entry.script = {run.entry.script!r}: there is no such file (looked for from {Path.cwd()})")
    return [_literal(str(path)), *run.entry.args]


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def write_result(spec: Spec, outcome: Outcome, began: float) -> None:
    """train.json of a program that writes none of ours: that it is done, where it ran and how long."""
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
    out = Path(spec.out)
    beside = out.with_name(f".{out.name}.new")
    beside.write_text(json.dumps(result, indent=1) + "\n")
    beside.replace(out)
