"""What earlier attempts tell of the next one: whether it is worth its nodes.

A person who starts a run is always obeyed. What goes on by itself (Snakemake's retries, a requeued job) goes on while
the run gets further: a verdict that another try does not change ends it, and so do attempts that save nothing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trainpkg.launch.slurm.control import Life

MOST_IN_VAIN = 3  # node failures and preemptions may strike before the first checkpoint, though hardly thrice in a row


def attempts(launches: Path) -> list[int]:
    """Numbers of the attempts in a folder `launch`, in order."""
    if not launches.is_dir():
        return []
    return sorted(int(path.name) for path in launches.iterdir() if path.name.isdigit())


def read_attempt(launches: Path, number: int) -> dict[str, Any]:
    """attempt.json; empty when it cannot be read."""
    return read_json(launches / str(number) / "attempt.json")


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a file; empty when there is none that can be read."""
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def saved_step(run_dir: Path) -> int | None:
    """Step of the newest checkpoint of our own trainer; None where there is none."""
    try:
        found = re.fullmatch(r"step-(\d+)", (run_dir / "checkpoints/latest").read_text().strip())
    except OSError:
        return None
    return int(found[1]) if found else None


def why_not_again(launches: Path, run_dir: Path, retry: int, life: Life | None) -> str:
    """Why a try that nobody asked for anew is in vain; empty where it is not, or where a person asked."""
    numbers = attempts(launches)
    last = read_attempt(launches, numbers[-1]) if numbers else {}
    requeued = life is not None and bool(life.restarts) and last.get("job") == life.job
    if not last or (retry <= 1 and not requeued):
        return ""
    if last.get("run_again") is False:
        ended = last.get("cause") or last.get("verdict")
        return f"attempt {last['attempt']} ended with {ended}, which another try does not change"
    vain = in_vain(launches, saved_step(run_dir))
    if len(vain) < MOST_IN_VAIN:
        return ""
    ends = ", ".join(f"{number}: {read_attempt(launches, number).get('verdict') or 'killed'}" for number in vain)
    return (
        f"{len(vain)} attempts in a row ({ends}) brought the run no further: none saved a checkpoint. Their logs say "
        "why they ended; a job that is killed before it saves needs more time, or a smaller checkpoint.every_steps"
    )


def in_vain(launches: Path, saved_now: int | None) -> list[int]:
    """The last attempts, in order, that left the run where it was, back to the one that a person started."""
    vain: list[int] = []
    after = saved_now
    for number in reversed(attempts(launches)):
        tree = read_attempt(launches, number)
        if _advanced(tree, tree.get("saved_after", after)):
            break
        vain.insert(0, number)
        after = tree.get("saved_before")
        if tree.get("retry", 1) <= 1 and not tree.get("restarts"):
            break
    return vain


def _advanced(tree: dict[str, Any], after: int | None) -> bool:
    before = tree.get("saved_before")
    if tree.get("verdict") in ("again", "finished"):
        return True
    if before is not None or after is not None:
        return (-1 if after is None else after) > (-1 if before is None else before)
    # a program that keeps its own checkpoints: its steps tell, or nothing does
    return tree.get("step_first") is not None or not tree.get("counts_steps", True)
