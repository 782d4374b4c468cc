"""The checkpoints of one run on disk, as all ranks see them: which there are, which are whole, whose they are.

    checkpoints/step-00000200/   rank-00000.safetensors (shards), rank-00000.json (what each rank has for itself),
                                 index.json (which shard is where), state.json (how far), manifest.json
    checkpoints/latest           name of the newest, moved last
    checkpoints/best             name of the best that is kept, where checkpoint.keep_best asks for any

A step directory appears by one rename after all its files are synced, so what was there before stays whole if a save
fails. Publishing and which ones stay is `retention`; what is in a checkpoint, and when one is due, `checkpoint`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trainpkg.config import Checkpoint, Run
from trainpkg.errors import UserError
from trainpkg.runtime import manifest
from trainpkg.runtime.checkpoints import retention
from trainpkg.runtime.checkpoints.retention import STATE, Publication, step_name, step_names
from trainpkg.runtime.distributed import RankContext, broadcast_object, gather_objects


class Shelf:
    """The checkpoints in `folder`."""

    def __init__(self, ctx: RankContext, folder: Path, config: Checkpoint) -> None:
        self.ctx, self.folder, self.config = ctx, folder, config
        self.damaged: set[str] = set()  # rank 0's knowledge

    # -- rank 0 alone

    def clear_interrupted(self) -> None:
        """Remove what interrupted saves left behind; only for the one writer of the run directory."""
        for left in self.folder.glob(".tmp-*"):
            shutil.rmtree(left, ignore_errors=True)

    def publication(self, waiting: Path, step: int, files: manifest.Files) -> Publication:
        """What is to be done with the directory `waiting`, whose files all ranks have synced."""
        config = self.config
        self.damaged.discard(step_name(step))
        return Publication(
            str(self.folder), str(waiting), step, files, config.keep_last, config.keep_best, config.keep_every_steps,
            tuple(self.damaged),
        )  # fmt: skip

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
            best = retention.best_first(self.folder, step_names(self.folder), {})
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
