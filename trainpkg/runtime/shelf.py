"""The checkpoints of one run on disk: publishing whole ones only, which of them stay, which are whole.

    checkpoints/step-00000200/   shards and index of torch.distributed.checkpoint: tensors only
                                 state.json (how far), rank-00000.json (what each rank has for itself), manifest.json
    checkpoints/latest           name of the newest, moved last
    checkpoints/best             name of the best that is kept, where checkpoint.keep_best asks for any

A step directory appears by one rename after all its files are synced, so what was there before stays whole if a save
fails. Everything that decides which stay is read from the directories themselves. What is in a checkpoint, and when one
is due, belongs to `checkpoint`.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

from trainpkg.config import Checkpoint, Run
from trainpkg.errors import UserError
from trainpkg.runtime import manifest
from trainpkg.runtime.distributed import RankContext, broadcast_object, gather_objects

STATE = "state.json"
_STEP = re.compile(r"step-(\d{8,})")


class Shelf:
    """The checkpoints in `folder`."""

    def __init__(self, ctx: RankContext, folder: Path, config: Checkpoint) -> None:
        self.ctx, self.folder, self.config = ctx, folder, config
        self.damaged: set[str] = set()  # rank 0's knowledge
        self._scores: dict[str, float | None] = {}

    # -- rank 0 alone

    def clear_interrupted(self) -> None:
        """Remove what interrupted saves left behind; only for the one writer of the run directory."""
        for left in self.folder.glob(".tmp-*"):
            shutil.rmtree(left, ignore_errors=True)

    def publish(self, waiting: Path, step: int, files: manifest.Files) -> None:
        """Make the directory `waiting`, whose files all ranks have synced, the checkpoint of `step`."""
        manifest.write_manifest(waiting, files, step=step)
        final = self.folder / step_name(step)
        doomed = None
        if final.exists():  # damaged and passed over when this attempt started, or it would have been loaded
            doomed = final.rename(self.folder / f".tmp-old-{uuid.uuid4().hex[:8]}")
        waiting.rename(final)
        manifest.sync_directory(self.folder)
        manifest.replace_synced(self.folder / "latest", final.name + "\n")
        self.damaged.discard(final.name)
        self._scores.pop(final.name, None)
        if doomed is not None:
            shutil.rmtree(doomed, ignore_errors=True)
        self._prune(step)

    def _prune(self, step: int) -> None:
        """Remove what no key keeps, up to this step; what is newer is damaged, and will be overwritten."""
        done = [name for name in step_names(self.folder) if step_of(name) <= step]
        whole = [name for name in done if name not in self.damaged]
        best = self.best_first(whole)[: self.config.keep_best]
        for_ever = self.config.keep_every_steps
        kept = {*whole[: self.config.keep_last], *best}
        kept |= {name for name in whole if for_ever and step_of(name) % for_ever == 0}
        self._point_at_best(best)
        for name in set(done) - kept:
            # Renamed first: a directory that is half deleted must not look like a checkpoint.
            doomed = (self.folder / name).rename(self.folder / f".tmp-old-{name}")
            shutil.rmtree(doomed, ignore_errors=True)

    def _point_at_best(self, best: list[str]) -> None:
        pointer = self.folder / "best"
        if not best:
            pointer.unlink(missing_ok=True)
        elif not pointer.exists() or pointer.read_text() != best[0] + "\n":
            manifest.replace_synced(pointer, best[0] + "\n")

    def best_first(self, names: list[str]) -> list[str]:
        """Those that were evaluated at their own step, the best first, of equal ones the earlier."""
        for name in names:
            if name not in self._scores:
                self._scores[name] = score(self.folder / name)
        found = [(-value, step_of(name), name) for name in names if (value := self._scores[name]) is not None]
        return [name for _, _, name in sorted(found)]

    # -- all ranks together

    def newest(self) -> list[str]:
        """Names of the step directories, newest first, whole or not; rank 0's view."""
        names: list[str] = broadcast_object(self.ctx, step_names(self.folder) if self.ctx.is_main else None)
        return names

    def find(self, key: str, which: str) -> Path:
        """Exactly the checkpoint that `key: which` names: `best`, a step's number or a path.

        UserError, with what there is, for one that is missing, partial or damaged.
        """
        root = broadcast_object(self.ctx, self._named(which) if self.ctx.is_main else None)
        if root is None:
            raise self._refusal(key, which, "no checkpoint was evaluated at its own step")
        return self.require_whole(key, which, root)

    def require_whole(self, key: str, which: str, root: Path) -> Path:
        """`root`, or the UserError of `find`."""
        if broadcast_object(self.ctx, not root.is_dir()):
            raise self._refusal(key, which, f"there is no directory {root}")
        problems = self.problems(root)
        if problems:
            raise self._refusal(key, which, "; ".join(problems))
        return root

    def _refusal(self, key: str, which: str, problem: str) -> UserError:
        there = ", ".join(self.newest()) or "no checkpoint"
        return UserError(f"{key} = {which!r}: {problem}. {self.folder} holds {there}")

    def _named(self, which: str) -> Path | None:
        if which == "best":
            best = self.best_first(step_names(self.folder))
            return self.folder / best[0] if best else None
        return self.folder / step_name(int(which)) if which.isdigit() else Path(which).expanduser().absolute()

    def problems(self, root: Path) -> list[str]:
        """What is wrong with a checkpoint, equal on all ranks: sizes by rank 0, checksums shared out over the ranks.

        UserError on all ranks where one of them cannot read a file.
        """
        files: manifest.Files = {}
        found: list[str | None] = []
        refused = None
        if self.ctx.is_main:
            try:
                files = manifest.read_manifest(root)
            except UserError as error:
                refused = str(error)
            except ValueError as error:
                found = [str(error)]
        files, found, refused = broadcast_object(self.ctx, (files, found, refused))
        if not found and refused is None:
            share = sorted(files)[self.ctx.rank :: self.ctx.world_size]
            try:
                found = [manifest.wrong_checksum(root, file, files[file]) for file in share]
            except UserError as error:
                refused = str(error)
        outcomes = gather_objects(self.ctx, (found, refused))
        for _, refusal in outcomes:
            if refusal is not None:
                raise UserError(refusal)
        return list(dict.fromkeys(text for texts, _ in outcomes for text in texts if text))


def read_facts(root: Path, run: Run, data_digest: str | None) -> dict[str, Any]:
    """state.json; UserError for another run's, or one of other data (early ones do not say which)."""
    facts: dict[str, Any] = json.loads((root / STATE).read_text())
    if facts["fingerprint"] != run.fingerprint():
        raise UserError(
            f"{root} belongs to fingerprint {facts['fingerprint']}, this run's is {run.fingerprint()}: model, data or "
            "optimisation were changed; start it through `launch`, which moves the old run aside, or name another run"
        )
    saved = facts.get("data_digest")
    if None not in (saved, data_digest) and saved != data_digest:
        raise UserError(
            f"{root} is of data with digest {saved}, the data here have {data_digest}: train and evaluate a run on "
            "machines with the same data (data.name = python_text is the library of the Python that runs: the same "
            "Python everywhere), or name another run"
        )
    return facts


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
