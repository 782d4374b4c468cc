"""Checkpoints of one run: when to save, publishing whole ones only, finding the newest whole one, pruning.

    checkpoints/step-00000200/   shards and index of torch.distributed.checkpoint: tensors only
                                 state.json (how far), rank-00000.json (what each rank has for itself), manifest.json
    checkpoints/latest           name of the newest, moved last

All ranks call every method, and every decision is rank 0's, or made from what all ranks gathered. A step directory
appears by one rename after all its files are synced, so what was there before stays whole if a save fails.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from trainpkg import __version__
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.runtime import manifest, tensors
from trainpkg.runtime.distributed import RankContext, broadcast_object, gather_objects, is_lost_peer, patient
from trainpkg.runtime.parallel import Single
from trainpkg.runtime.seeding import mix, rng_state, seed_all, set_rng_state
from trainpkg.runtime.state import RunningLoss, TrainState
from trainpkg.runtime.update import Update

FORMAT = 1
_STEP = re.compile(r"step-(\d{8,})")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Checkpoints:
    """The checkpoints in `folder`, of what the other arguments hold. `update` None: for loading weights only."""

    def __init__(
        self,
        ctx: RankContext,
        folder: Path,
        run: Run,
        strategy: Single,
        update: Update | None,
        state: TrainState,
        loss: RunningLoss,
        data_digest: str | None = None,
    ) -> None:
        self.data_digest = data_digest  # None: data play no part, and none are compared
        self.ctx, self.folder, self.run, self.strategy = ctx, folder, run, strategy
        self.update, self.state, self.loss = update, state, loss
        self._damaged: set[str] = set()  # rank 0's knowledge
        self.passed_over: list[str] = []  # names of damaged ones newer than what was loaded, newest first, on all ranks
        self._saved_step: int | None = None

    def maybe_save(self, step: int) -> None:
        """Save if the policy says so after `step` steps; the last step always does."""
        if step % self.run.checkpoint.every_steps == 0 or step >= self.run.train.max_steps:
            self.save(step)

    def save(self, step: int) -> None:
        """Save now, unless this very step is saved. UserError where the disk is full: nothing old is lost."""
        if step != self._saved_step:
            with patient(self.ctx, "saving", self.run.checkpoint.timeout_s):
                self._save(step)

    def load_latest(self) -> str | None:
        """Load the newest whole checkpoint and return its name; None where there is none.

        Damaged and partial ones are passed over with a warning that names the file and what is wrong with it.
        UserError for a checkpoint of another run (fingerprint) or of other data (digest), and for files that cannot be
        read: they may be whole.
        """
        names = broadcast_object(self.ctx, step_names(self.folder) if self.ctx.is_main else None)
        for name in names:
            problems = self._problems(name)
            if not problems:
                self._load(name)
                return str(name)
            self._damaged.add(name)
            self.passed_over.append(name)
            if self.ctx.is_main:
                self.ctx.warn(f"checkpoint {name} is passed over: {'; '.join(problems)}")
        if names and self.ctx.is_main:
            self.ctx.warn(f"none of the {len(names)} checkpoints in {self.folder} is whole")
        return None

    def clear_interrupted(self) -> None:
        """Remove what interrupted saves left behind; only for the one writer of the run directory."""
        if self.ctx.is_main:
            for left in self.folder.glob(".tmp-*"):
                shutil.rmtree(left, ignore_errors=True)

    # -- saving

    def _save(self, step: int) -> None:
        started = time.monotonic()
        waiting = self.folder / f".tmp-{step_name(step)}-{uuid.uuid4().hex[:8]}"
        refused = self._attempt(waiting.mkdir, 0o777, True) if self.ctx.is_main else None
        waiting, refused = broadcast_object(self.ctx, (waiting, refused))
        outcomes = gather_objects(self.ctx, ({}, refused) if refused else self._write_own(waiting))
        problem = next((problem for _, problem in outcomes if problem), None)
        if self.ctx.is_main and problem is None:
            files = {name: facts for files, _ in outcomes for name, facts in files.items()}
            with self.ctx.reporter.phase("publishing"):
                problem = self._attempt(self._publish, waiting, step, files)
        problem = broadcast_object(self.ctx, problem)
        if problem is not None:
            if self.ctx.is_main:
                shutil.rmtree(waiting, ignore_errors=True)
            raise UserError(f"checkpoint of step {step} cannot be saved in {self.folder}: {problem}")
        self._saved_step = step
        seconds = time.monotonic() - started
        if self.ctx.is_main:
            self.ctx.say(f"saved {step_name(step)} in {seconds:.2f} s of at most {self.run.checkpoint.timeout_s:g} s")
        self.ctx.reporter.saved(step, seconds)

    def _write_own(self, waiting: Path) -> tuple[manifest.Files, str | None]:
        """This rank's files in `waiting`, described, or what went wrong."""
        self.strategy.broadcast_buffers()
        own = f"rank-{self.ctx.rank:05d}.json"
        update = self.update
        assert update is not None, "weights alone are not a checkpoint"

        def write() -> manifest.Files:
            tensors.save(waiting, self.strategy.module, update.optimizers)
            content = {"rng": rng_state(self.ctx.device), "loss": self.loss.as_dict()}
            manifest.write_synced(waiting / own, json.dumps(content))
            return manifest.describe(waiting, [own, *tensors.files_of_rank(waiting, self.ctx.rank)])

        files: manifest.Files = {}
        problem = self._attempt(lambda: files.update(write()))
        return files, problem

    def _publish(self, waiting: Path, step: int, files: manifest.Files) -> None:
        facts = {
            "format": FORMAT,
            **dataclasses.asdict(self.state),
            "fingerprint": self.run.fingerprint(),
            "data_digest": self.data_digest,
            "seed": self.run.seed,
            "global_batch": self.run.train.global_batch,
            "world_size": self.ctx.world_size,
            "strategy": self.strategy.name,
            "torch": str(torch.__version__),
            "trainpkg": __version__,
        }
        manifest.write_synced(waiting / "state.json", json.dumps(facts, indent=1))
        mine = manifest.describe(waiting, ["state.json", *tensors.index_files()])
        manifest.write_manifest(waiting, {**files, **mine}, format=FORMAT, step=step)
        final = self.folder / step_name(step)
        doomed = None
        if final.exists():  # damaged and passed over when this attempt started, or it would have been loaded
            doomed = final.rename(self.folder / f".tmp-old-{uuid.uuid4().hex[:8]}")
        waiting.rename(final)
        manifest.sync_directory(self.folder)
        manifest.replace_synced(self.folder / "latest", final.name + "\n")
        self._damaged.discard(final.name)
        if doomed is not None:
            shutil.rmtree(doomed, ignore_errors=True)
        self._prune(step)

    def _prune(self, step: int) -> None:
        """Keep the newest `keep_last` whole ones up to this step, and whatever is newer: damaged, to be overwritten."""
        done = [name for name in step_names(self.folder) if step_of(name) <= step]
        whole = [name for name in done if name not in self._damaged]
        oldest = step_of(whole[: self.run.checkpoint.keep_last][-1])
        for name in done:
            if step_of(name) < oldest:
                # Renamed first: a directory that is half deleted must not look like a checkpoint.
                doomed = (self.folder / name).rename(self.folder / f".tmp-old-{name}")
                shutil.rmtree(doomed, ignore_errors=True)

    def _attempt(self, action: Any, *arguments: Any) -> str | None:
        """Run it; the sentence for a user where the file system refuses, other exceptions pass."""
        try:
            action(*arguments)
        except (OSError, CheckpointException, RuntimeError) as error:
            if is_lost_peer(error):
                raise
            problem = file_problem(error, self.folder)
            if problem is None:
                raise
            return problem
        return None

    # -- loading

    def _problems(self, name: str) -> list[str]:
        """What is wrong with a checkpoint, equal on all ranks: sizes by rank 0, checksums shared out over the ranks.

        UserError on all ranks where one of them cannot read a file.
        """
        files: manifest.Files = {}
        found: list[str | None] = []
        refused = None
        if self.ctx.is_main:
            try:
                files = manifest.read_manifest(self.folder / name)
            except UserError as error:
                refused = str(error)
            except ValueError as error:
                found = [str(error)]
        files, found, refused = broadcast_object(self.ctx, (files, found, refused))
        if not found and refused is None:
            share = sorted(files)[self.ctx.rank :: self.ctx.world_size]
            try:
                found = [manifest.wrong_checksum(self.folder / name, file, files[file]) for file in share]
            except UserError as error:
                refused = str(error)
        outcomes = gather_objects(self.ctx, (found, refused))
        for _, refusal in outcomes:
            if refusal is not None:
                raise UserError(refusal)
        return list(dict.fromkeys(text for texts, _ in outcomes for text in texts if text))

    def _load(self, name: str) -> None:
        root = self.folder / name
        facts = read_facts(root, self.run, self.data_digest)
        tensors.load(root, self.strategy.module, self.update.optimizers if self.update else None)
        for field in dataclasses.fields(self.state):
            setattr(self.state, field.name, facts.get(field.name, getattr(self.state, field.name)))
        self._saved_step = self.state.step
        if self.update is not None:
            self._load_own(root, facts)

    def _load_own(self, root: Path, facts: Mapping[str, Any]) -> None:
        """What each rank has for itself: its own again, or, on another number of ranks, the sums over all."""
        world_size = facts["world_size"]
        if world_size == self.ctx.world_size:
            own = json.loads((root / f"rank-{self.ctx.rank:05d}.json").read_text())
            self.loss.load(own["loss"])
            set_rng_state(own["rng"], self.ctx.device)
            return
        if self.ctx.is_main:
            self.ctx.say(f"{root.name} is of {world_size} ranks, these are {self.ctx.world_size}: no sample is lost")
            losses = [json.loads((root / f"rank-{r:05d}.json").read_text())["loss"] for r in range(world_size)]
            self.loss.load({key: sum(loss[key] for loss in losses) for key in ("total", "count")})
        seed_all(mix("resume", self.run.seed, self.state.step, self.ctx.rank, self.ctx.world_size))


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def step_names(folder: Path) -> list[str]:
    """Names of the step directories, newest first, whole or not."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted((name for name in names if _STEP.fullmatch(name)), key=step_of, reverse=True)


def read_facts(root: Path, run: Run, data_digest: str | None) -> dict[str, Any]:
    """state.json; UserError for another format, another run's, or one of other data (early ones do not say which)."""
    facts: dict[str, Any] = json.loads((root / "state.json").read_text())
    if facts["format"] != FORMAT:
        raise UserError(f"{root} has format {facts['format']}, this version of trainpkg reads {FORMAT}")
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


def file_problem(error: BaseException, folder: Path) -> str | None:
    """A sentence for a full disk or another refusal of the file system; None where the error is something else."""
    causes = [error]
    if isinstance(error, CheckpointException):
        causes = [failure[0] for failure in error.failures.values()]
    for cause in causes:
        number = cause.errno if isinstance(cause, OSError) else None
        # torch's zip writer turns what the file said into a RuntimeError without the number
        if number in _FULL or "file write failed" in str(cause) or "unexpected pos" in str(cause):
            usage = shutil.disk_usage(folder)
            return (
                f"no space left ({usage.free:,} of {usage.total:,} bytes free there, or a quota or file-size limit "
                "reached); earlier checkpoints are intact; free space or set results_dir to another file system, then "
                "start again"
            )
        if number is not None:
            return f"{cause}; earlier checkpoints are intact"
    return None
