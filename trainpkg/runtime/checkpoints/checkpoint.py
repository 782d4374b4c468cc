"""Checkpoints of one run: what is in one, when one is due, saving beside training, going on from one.

All ranks call every method, and every decision is rank 0's, or made from what all ranks gathered. A checkpoint is the
state of the step at whose end it was begun, also when training goes on while it is written. Who writes it belongs to
`saving`, which there are to `shelf`, which of them stay to `retention`.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainpkg import __version__
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.runtime.checkpoints import init_from, shards, tensors
from trainpkg.runtime.checkpoints.retention import STATE, step_name
from trainpkg.runtime.checkpoints.saving import Answer, Beside, Here, Part
from trainpkg.runtime.checkpoints.shelf import Shelf, read_facts
from trainpkg.runtime.distributed import RankContext, broadcast_object, gather_objects, patient
from trainpkg.runtime.parallel import Single
from trainpkg.runtime.seeding import mix, rng_state, seed_all, set_rng_state
from trainpkg.runtime.state import RunningLoss, TrainState
from trainpkg.runtime.update import Update

DUE, READY = 1, 2  # what a rank tells the others of, as bits


@dataclasses.dataclass
class Flight:
    """A save that was begun. Times are monotonic."""

    step: int
    waiting: Path
    writer: Here | Beside
    began_s: float = dataclasses.field(default_factory=time.monotonic)
    held_up_s: float = 0.0  # for how long training stood still
    published: bool = False  # the order was given: rank 0's answer is awaited, and no other


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
        self.ctx, self.run, self.strategy = ctx, run, strategy
        self.update, self.state, self.loss = update, state, loss
        self.shelf = Shelf(ctx, folder, run.checkpoint)
        self.passed_over: list[str] = []  # names of damaged ones newer than what was loaded, newest first, on all ranks
        self._saved_step: int | None = None  # or being saved
        self._flight: Flight | None = None
        self._due = False
        self._last = time.monotonic()
        self._here = Here()
        self._beside = Beside(ctx.device.type == "cuda") if run.checkpoint.asynchronous else self._here

    # -- when

    def wish(self) -> float:
        """What this rank tells the others where they meet; they `agree` on what comes of it."""
        minutes = self.run.checkpoint.every_minutes
        due = self.ctx.is_main and minutes is not None and time.monotonic() - self._last >= 60 * minutes
        flight = self._flight
        ready = flight is not None and ((flight.published and not self.ctx.is_main) or flight.writer.ready)
        return DUE * due + READY * ready

    def agree(self, wishes: Sequence[float]) -> None:
        """All ranks' wishes. UserError on all of them where a save beside training has failed."""
        self._due = any(int(wish) & DUE for wish in wishes)
        if all(int(wish) & READY for wish in wishes):
            self._advance()

    def maybe_save(self, step: int) -> None:
        """Save if the policy says so after `step` steps; the last step always does, and waits for the disk."""
        is_last = step >= self.run.train.max_steps
        if is_last or self._due or step % self.run.checkpoint.every_steps == 0:
            self._begin(step, self._here if is_last else self._beside)

    def save(self, step: int) -> None:
        """This step is on disk when it returns. UserError where the disk is full: nothing old is lost."""
        self._begin(step, self._here)
        self.settle()

    def settle(self) -> None:
        """Wait for the save that was begun, if any. UserError where it failed."""
        if self._flight is not None:
            with patient(self.ctx, "saving", self.run.checkpoint.timeout_s):
                while self._flight is not None:
                    self._advance()

    # -- saving

    def _begin(self, step: int, writer: Here | Beside) -> None:
        """Begin to save, unless this very step is saved or being saved; `Here`, it is over on return."""
        if step == self._saved_step:
            return
        self.settle()
        self._saved_step, self._due, self._last = step, False, time.monotonic()
        waiting = self.shelf.folder / f".tmp-{step_name(step)}-{self.ctx.attempt}.{self.ctx.generation}"
        self._flight = Flight(step, waiting, writer)
        with self.ctx.reporter.phase("saving"):
            self.strategy.broadcast_buffers()
            share = shards.Shards(tensors.share(self._parts(), self.ctx.rank, self.ctx.world_size))
            writer.write(Part(waiting, self._texts(), shards.file_of(self.ctx.rank), share))
        self._flight.held_up_s = time.monotonic() - self._flight.began_s
        if writer is self._here:
            self.settle()

    def _advance(self) -> None:
        """From what each rank has written to the order to publish it, from that to the end. Collective, may wait."""
        flight = self._flight
        assert flight is not None
        if not flight.published:
            answers = gather_objects(self.ctx, flight.writer.answer())
            self._refuse(flight, answers)
            files = {name: facts for answer in answers for name, facts in answer.files.items()}
            flight.published = True
            if self.ctx.is_main:
                with self.ctx.reporter.phase("publishing"):
                    flight.writer.publish(self.shelf.publication(flight.waiting, flight.step, files))
            return
        answer = None
        if self.ctx.is_main:
            with self.ctx.reporter.phase("publishing"):
                answer = flight.writer.answer()
        answer, seconds = broadcast_object(self.ctx, (answer, answer and answer.ended_s - flight.began_s))
        self._refuse(flight, [answer])
        self._flight = None
        if self.ctx.is_main:
            held_up = f", beside training, which stood still for {flight.held_up_s:.2f} s"
            limit = f" of at most {self.run.checkpoint.timeout_s:g} s"
            how = limit if flight.writer is self._here else held_up
            self.ctx.say(f"saved {step_name(flight.step)} in {seconds:.2f} s{how}")
        self.ctx.reporter.saved(flight.step, seconds)

    def _refuse(self, flight: Flight, answers: list[Answer]) -> None:
        """UserError, the same on all ranks, where any of these answers tells of a problem."""
        problem = next((answer.problem for answer in answers if answer.problem), None)
        if problem is None:
            return
        self._flight = None
        if self.ctx.is_main:
            shutil.rmtree(flight.waiting, ignore_errors=True)
        raise UserError(f"checkpoint of step {flight.step} cannot be saved in {self.shelf.folder}: {problem}")

    def _parts(self) -> dict[str, torch.Tensor]:
        """All tensors of a checkpoint, by name: those that training works with."""
        assert self.update is not None, "weights alone are not a checkpoint"
        parts = tensors.of_training(self.strategy.module, self.update.optimizers)
        return parts | tensors.of_average(self.update.average.state())

    def _texts(self) -> dict[str, str]:
        """Contents of the files besides the tensors that this rank writes."""
        assert self.update is not None
        own = {"rng": rng_state(self.ctx.device), "loss": self.loss.as_dict()}
        texts = {own_file(self.ctx.rank): json.dumps(own)}
        if self.ctx.is_main:
            facts = {
                **dataclasses.asdict(self.state),
                "update": self.update.state(),
                "fingerprint": self.run.fingerprint(),
                "data_digest": self.data_digest,
                "seed": self.run.seed,
                "global_batch": self.run.train.global_batch,
                "world_size": self.ctx.world_size,
                "strategy": self.strategy.name,
                "torch": str(torch.__version__),
                "trainpkg": __version__,
            }
            texts[STATE] = json.dumps(facts, indent=1)
        return texts

    # -- loading

    def clear_interrupted(self) -> None:
        """Remove what interrupted saves left behind; only for the one writer of the run directory."""
        if self.ctx.is_main:
            self.shelf.clear_interrupted()

    def resume(self) -> str:
        """Go on from the newest whole checkpoint, else begin as train.init_from says; returns what was done."""
        assert self.update is not None
        root = self._newest_whole()
        if root is not None:
            self._load(root)
            return f"goes on from {root.name}"
        begin = self.run.train.init_from
        if begin is None:
            return "starts at step 0"
        init_from.load(self.shelf, self.strategy.module, begin)
        self.strategy.gather_again()
        self.update.average.restart()
        return f"starts at step 0 with the weights of {begin}"

    def load_weights(self, which: str, weights: str) -> tuple[str, str]:
        """Only weights and `state`, of the checkpoint that `which` names; returns its name, and `raw` or `ema`.

        `last`: the newest whole one. UserError where there is none, and where the averaged ones are asked for but not
        there.
        """
        folder = Path(which).expanduser().absolute()
        if which not in ("last", "best") and init_from.is_folder(self.shelf, folder):
            return self._load_folder(folder, weights)
        root = self._newest_whole() if which == "last" else self.shelf.find("evaluate.checkpoint", which)
        if root is None:
            raise UserError(f"{self.shelf.folder} holds no whole checkpoint; train the run first")
        facts = read_facts(root, self.run, self.data_digest)
        saved = shards.read_index(root)["tensors"]
        averaged = weights != "raw" and self.run.ema is not None and any(name.startswith("ema.") for name in saved)
        if weights == "ema" and not averaged:
            raise UserError(f"evaluate.weights = 'ema': {root} holds no averaged weights; take raw")
        shards.load(root, tensors.renamed(tensors.of_model(self.strategy.module), saved, averaged))
        self._take(facts)
        return root.name, "ema" if averaged else "raw"

    def _load_folder(self, folder: Path, weights: str) -> tuple[str, str]:
        """Of a model folder, ours or as Hugging Face has them; how far it was trained is said by its config.json."""
        path, kind, self.state.step = init_from.choose(self.shelf, folder, weights)
        init_from.load_folder(self.shelf, self.strategy.module, path, "evaluate.checkpoint")
        return str(folder), kind

    def _newest_whole(self) -> Path | None:
        """Damaged and partial ones are passed over with a warning that names the file and what is wrong with it."""
        names = self.shelf.newest()
        for name in names:
            problems = self.shelf.problems(self.shelf.folder / name)
            if not problems:
                return self.shelf.folder / name
            self.shelf.damaged.add(name)
            self.passed_over.append(name)
            if self.ctx.is_main:
                self.ctx.warn(f"checkpoint {name} is passed over: {'; '.join(problems)}")
        if names and self.ctx.is_main:
            self.ctx.warn(f"none of the {len(names)} checkpoints in {self.shelf.folder} is whole")
        return None

    def _load(self, root: Path) -> None:
        """Everything. UserError for a checkpoint of another run (fingerprint) or of other data (digest)."""
        assert self.update is not None
        facts = read_facts(root, self.run, self.data_digest)
        saved = shards.read_index(root)["tensors"]
        tensors.make_room(self.strategy.module, self.update.optimizers, saved)
        parts = self._parts()
        lacks_average = any(name.startswith("ema.") and name not in saved for name in parts)
        if lacks_average:
            parts = {name: tensor for name, tensor in parts.items() if not name.startswith("ema.")}
        shards.load(root, parts)
        self.strategy.gather_again()
        if lacks_average:
            self.update.average.restart()
            if self.ctx.is_main:
                self.ctx.warn(f"{root.name} holds no averaged weights: the average begins anew from its weights")
        if "update" in facts:
            self.update.load(facts["update"])
        self._take(facts)
        self._saved_step = self.state.step
        self._load_own(root, facts)

    def _take(self, facts: Mapping[str, Any]) -> None:
        for field in dataclasses.fields(self.state):
            setattr(self.state, field.name, facts.get(field.name, getattr(self.state, field.name)))

    def _load_own(self, root: Path, facts: Mapping[str, Any]) -> None:
        """What each rank has for itself: its own again, or, on another number of ranks, the sums over all."""
        world_size = facts["world_size"]
        if world_size == self.ctx.world_size:
            own = json.loads((root / own_file(self.ctx.rank)).read_text())
            self.loss.load(own["loss"])
            set_rng_state(own["rng"], self.ctx.device)
            return
        if self.ctx.is_main:
            self.ctx.say(f"{root.name} is of {world_size} ranks, these are {self.ctx.world_size}: no sample is lost")
            losses = [json.loads((root / own_file(rank)).read_text())["loss"] for rank in range(world_size)]
            self.loss.load({key: sum(loss[key] for loss in losses) for key in ("total", "count")})
        seed_all(mix("resume", self.run.seed, self.state.step, self.ctx.rank, self.ctx.world_size))


def own_file(rank: int) -> str:
    return f"rank-{rank:05d}.json"
