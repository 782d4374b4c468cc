"""Publishing a whole checkpoint by one rename, and which ones stay: one process's work, from the directories alone.

Standard library only: also done by a process that has nothing else (`scribe`). What all ranks do together with the
checkpoints on disk belongs to `shelf`.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainpkg.runtime import manifest
from trainpkg.runtime.checkpoints import layout

STATE = "state.json"
_STEP = re.compile(r"step-(\d{8,})")
Scores = dict[str, float | None]  # of checkpoints whose facts were read already


@dataclass(frozen=True)
class Publication:
    """A directory `waiting` in `folder` that shall be the checkpoint of `step`, and what is kept beside it."""

    folder: str
    waiting: str
    step: int
    files: manifest.Files  # of all ranks, which have synced them
    keep_last: int
    keep_best: int = 0
    keep_every_steps: int | None = None
    damaged: tuple[str, ...] = ()  # names of directories that no key keeps


def publish(what: Publication, scores: Scores) -> None:
    """Index, manifest, rename, pointers, and away with what is kept no longer: in this order. OSError."""
    folder, waiting = Path(what.folder), Path(what.waiting)
    shards = sorted(name for name in what.files if name.endswith(layout.SUFFIX))
    manifest.write_synced(waiting / layout.INDEX, json.dumps(layout.index(waiting, shards)))
    files = what.files | manifest.describe(waiting, [layout.INDEX])
    manifest.write_manifest(waiting, files, step=what.step)
    final = folder / step_name(what.step)
    doomed = None
    if final.exists():  # damaged and passed over when this attempt started, or it would have been loaded
        doomed = final.rename(folder / f".tmp-old-{uuid.uuid4().hex[:8]}")
    waiting.rename(final)
    manifest.sync_directory(folder)
    manifest.replace_synced(folder / "latest", final.name + "\n")
    scores.pop(final.name, None)
    if doomed is not None:
        shutil.rmtree(doomed, ignore_errors=True)
    _prune(what, scores)


def _prune(what: Publication, scores: Scores) -> None:
    """Remove what no key keeps, up to this step; what is newer is damaged, and will be overwritten."""
    folder = Path(what.folder)
    done = [name for name in step_names(folder) if step_of(name) <= what.step]
    whole = [name for name in done if name not in what.damaged]
    best = best_first(folder, whole, scores)[: what.keep_best] if what.keep_best else []
    kept = {*whole[: what.keep_last], *best}
    kept |= {name for name in whole if what.keep_every_steps and step_of(name) % what.keep_every_steps == 0}
    _point_at_best(folder, best)
    for name in set(done) - kept:
        # Renamed first: a directory that is half deleted must not look like a checkpoint.
        doomed = (folder / name).rename(folder / f".tmp-old-{name}")
        shutil.rmtree(doomed, ignore_errors=True)


def _point_at_best(folder: Path, best: list[str]) -> None:
    pointer = folder / "best"
    if not best:
        pointer.unlink(missing_ok=True)
    elif not pointer.exists() or pointer.read_text() != best[0] + "\n":
        manifest.replace_synced(pointer, best[0] + "\n")


def best_first(folder: Path, names: list[str], scores: Scores) -> list[str]:
    """Those that were evaluated at their own step, the best first, of equal ones the earlier."""
    for name in names:
        if name not in scores:
            scores[name] = score(folder / name)
    found = [(-value, step_of(name), name) for name in names if (value := scores[name]) is not None]
    return [name for _, _, name in sorted(found)]


def score(root: Path) -> float | None:
    """The task's metric of the evaluation at the checkpoint's own step, higher for better; None without one."""
    try:
        facts: dict[str, Any] = json.loads((root / STATE).read_text())
        best, evaluation = facts["best"], facts["last_eval"]
        if not best or evaluation.get("step") != facts["step"]:
            return None
        value = float(evaluation["metrics"][best["metric"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not a whole checkpoint
    if math.isnan(value):
        return None
    return value if best["mode"] == "max" else -value


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def step_names(folder: Path) -> list[str]:
    """Names of the step directories, newest first, whole or not."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted((name for name in names if _STEP.fullmatch(name)), key=step_of, reverse=True)
