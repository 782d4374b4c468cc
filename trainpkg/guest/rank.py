"""One rank's life under someone else's launcher. Rank 0 keeps the run directory as `launch` would.

The end of a rank is the launcher's business; each ends deliberately, with the status that tells why.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from trainpkg import train
from trainpkg.config import Run
from trainpkg.guest.exchange import Exchange, open_store, told_to_all
from trainpkg.guest.places import Layout, Place, lay_out
from trainpkg.launch import facts, network
from trainpkg.launch.head import attempt, lock
from trainpkg.launch.head.attempt import Folder
from trainpkg.launch.head.outcome import AGAIN, Outcome
from trainpkg.launch.plan import make_plan
from trainpkg.launch.slurm import control
from trainpkg.launch.spec import Spec
from trainpkg.launch.start.identity import Identity
from trainpkg.runtime import rank
from trainpkg.runtime.distributed import RankContext, connect, context_from_environment
from trainpkg.runtime.report import Reporter
from trainpkg.runtime.signals import StopRequest

LOCK_PATIENCE_S = 60.0  # beyond the time to come: rank 0 may have to watch a lock's beat, and moves an old run aside


def live_as_guest(identity: Identity, where: tuple[str, int] | None, run: Run, out: Path) -> NoReturn:
    """Meet the others, train, end the process."""
    rank.live(lambda reporter, stop: Guest(identity, where, run, out, reporter, stop).train())


class Guest:
    """What one rank knows."""

    def __init__(
        self,
        identity: Identity,
        where: tuple[str, int] | None,
        run: Run,
        out: Path,
        reporter: Reporter,
        stop: StopRequest,
    ) -> None:
        self.identity, self.where, self.run = identity, where, run
        self.reporter, self.stop = reporter, stop
        self.folder = Folder.of("train", out)

    def train(self) -> tuple[str, RankContext | None]:
        """The verdict, and the context of the group where there was anything to do. Collective."""
        timeout_s = self.run.launch.init_timeout_s
        self.store = open_store(self.identity.rank, self.where, os.environ, timeout_s)
        exchange = Exchange(self.store, own_place(self.identity, self.run), os.environ, timeout_s)
        exchange.announce()
        if self.identity.rank > 0:
            message = exchange.hear(timeout_s + LOCK_PATIENCE_S)
            return self.work(message) if message["spec"] else ("finished", None)
        layout: Layout = told_to_all(exchange, lambda: lay_out(exchange.collect()))
        life = told_to_all(exchange, lambda: control.own_life(os.environ))
        with told_to_all(exchange, lambda: lock.acquire(self.folder.home, life)):
            spec: Spec | None = told_to_all(exchange, lambda: self.open_attempt(layout, life))
            message = {"spec": None if spec is None else dataclasses.asdict(spec), "layout": vars(layout)}
            exchange.answer(message)
            if spec is None:
                exchange.wait_until_heard()
                return "finished", None
            with self.attempt_kept(spec) as outcome:
                verdict, ctx = self.work(message)
                outcome.verdict, outcome.status = verdict, 0 if verdict == "finished" else AGAIN
            return verdict, ctx

    def open_attempt(self, layout: Layout, life: control.Life | None) -> Spec | None:
        """The files of a new attempt, under the lock; None where the run is finished already."""
        folder, run = self.folder, self.run
        if aside := attempt.set_aside_other_run(folder, run):
            print(
                f"run {run.run!r} is another one now, by its config or its inputs: the old run went to {aside}",
                flush=True,
            )
        if attempt.rewrite_if_finished(folder, run):
            print(f"run {run.run!r} is finished already; {folder.out} is written again", flush=True)
            return None
        attempt.refuse_repetition(folder, 1, life)
        fields: dict[str, Any] = {"gpus_per_node": layout.counts, "backend": "spawn", "max_restarts": 0}
        spec = attempt.make_spec(run, folder, layout.hosts, "guest", **fields)
        attempt.open_attempt(spec, folder, run, 1, life)
        spec.generation_dir(0).mkdir(parents=True, exist_ok=True)
        if layout.in_blocks:
            address, port = self.where or ("127.0.0.1", 1)
            plan = make_plan(
                layout.hosts, layout.counts, master_addr=address, master_port=port, master_proven=True,
                one_machine=True, attempt=spec.attempt,
            )  # fmt: skip
            told = plan.to_dict() | {"device": self.device, "gpus": [[] for _ in layout.hosts]}
            (spec.generation_dir(0) / "plan.json").write_text(json.dumps(told) + "\n")
        print(
            f"{spec.tag}: {self.identity.world_size} ranks by {self.identity.launcher}, {spec.launch_dir}", flush=True
        )
        return spec

    @property
    def device(self) -> str:
        asked = self.run.launch.device
        return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked

    def work(self, message: dict[str, Any]) -> tuple[str, RankContext]:
        """Join the group and train. `message` is rank 0's."""
        me, spec, layout = self.identity, message["spec"], message["layout"]
        address, port = self.where or ("127.0.0.1", 1)  # of a rank alone nobody calls
        node = layout["node_of"][me.rank]
        env = {
            "RANK": me.rank,
            "WORLD_SIZE": me.world_size,
            "LOCAL_RANK": me.local_rank,
            "LOCAL_WORLD_SIZE": layout["num_here"][me.rank],
            "NODE_RANK": node,
            "NUM_NODES": len(layout["hosts"]),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "TRAINPKG_HOST": layout["hosts"][node],
            "TRAINPKG_DEVICE": self.device,
            "TRAINPKG_GENERATION": 0,
        }
        if self.run.launch.dist_backend != "auto":
            env["TRAINPKG_DIST_BACKEND"] = self.run.launch.dist_backend
        texts = {name: str(value) for name, value in env.items()}
        ctx = context_from_environment(texts, self.run, spec, self.reporter, self.stop)
        self.stop.file = self.folder.run_dir / "stop" if ctx.is_main else None
        ctx = connect(ctx, self.store)
        if ctx.is_main:
            ctx.say(f"{ctx.world_size} of {ctx.world_size} ranks joined")
        return train.main(ctx, self.run, spec), ctx

    @contextmanager
    def attempt_kept(self, spec: Spec) -> Iterator[Outcome]:
        """Write into attempt.json how the work inside has ended."""
        outcome = Outcome("failed", 1, generations=1)
        try:
            yield outcome
            if outcome.verdict == "finished":
                attempt.keep_finished(self.folder)
        except BaseException as error:
            outcome.status = rank.status_of(error)
            outcome.sentence = f"rank 0 raised {type(error).__name__}: {str(error).strip().splitlines()[0][:400]}"
            raise
        finally:
            outcome.step_last = self.reporter.step_now
            attempt.close_attempt(spec, self.folder, outcome)


def own_place(identity: Identity, run: Run) -> Place:
    """This rank's word on itself."""
    return Place(
        rank=identity.rank,
        world_size=identity.world_size,
        local_rank=identity.local_rank,
        local_world_size=identity.local_world_size,
        node_rank=identity.node_rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=facts.machine(),
        devices=shown_devices(run),
        versions=facts.versions(),
        code_hash=facts.code_hash(),
        fingerprint=run.fingerprint(),
    )


def shown_devices(run: Run) -> str:
    """The GPUs that this process is shown, as text; empty on a CPU run."""
    return "" if run.launch.device == "cpu" else ",".join(network.visible_gpus(os.environ))
