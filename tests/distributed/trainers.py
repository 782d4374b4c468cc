"""The real trainer as the launcher's ranks, with the faults of TEST_FAULT: `name[:argument...]`, one per generation.

What the launcher sees is what it would see of a user's run, process group and all.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import trainpkg.evaluate
import trainpkg.train
from trainpkg.data.feed import Feed
from trainpkg.runtime import rank as rank_module
from trainpkg.runtime.checkpoints import retention
from trainpkg.runtime.checkpoints.saving import Here


def main() -> None:
    """Never returns: the trainer's own end."""
    faults = os.environ.get("TEST_FAULT", "none").split()
    generation = int(os.environ["TRAINPKG_GENERATION"])
    if generation < len(faults):
        name, *arguments = faults[generation].split(":")
        FAULTS[name](int(os.environ["RANK"]), *arguments)
    rank_module.main()


def none(rank: int) -> None:
    """Well behaved."""


def at_birth(rank: int, who: str, how: str) -> None:
    """Something happens before the rank has said a word."""
    if rank == int(who):
        ENDS[how]()


def before_join(rank: int, who: str, how: str) -> None:
    """... when it is about to join the others."""
    real = rank_module.connect

    def wrapped(ctx: Any) -> None:
        if rank == int(who):
            ENDS[how]()
        real(ctx)

    rank_module.connect = wrapped


def in_step(rank: int, who: str, when: str, how: str) -> None:
    """... while a batch is loaded in step `when` + 1; `+N`: counted from the first step of this generation."""
    real = Feed.step
    first: list[int] = []

    def wrapped(self: Feed, position: int) -> Any:
        step = position // self.global_batch
        first.append(step)
        if rank == int(who) and step - (first[0] if when.startswith("+") else 0) == int(when):
            ENDS[how]()
        return real(self, position)

    Feed.step = wrapped  # type: ignore[method-assign]


def in_save(rank: int, who: str, when: str, how: str) -> None:
    """... in the save after step `when`, with files half written."""
    real = Here.write

    def wrapped(self: Any, part: Any) -> None:
        if rank == int(who) and int(part.folder.name.split("-")[2]) >= int(when):
            part.folder.mkdir(parents=True, exist_ok=True)
            (part.folder / f"torn-{rank}").write_bytes(b"x" * 1000)
            ENDS[how]()
        real(self, part)

    Here.write = wrapped  # type: ignore[method-assign]


def anytime(rank: int, who: str, seconds: str, how: str) -> None:
    """... so long after the rank's birth, whatever it is at."""
    if rank == int(who):
        timer = threading.Timer(float(seconds), ENDS[how])
        timer.daemon = True
        timer.start()


def slow_publish(rank: int, seconds: str) -> None:
    """Rank 0 takes long to publish a checkpoint; the others wait for it."""
    real = retention.publish

    def wrapped(*arguments: Any) -> None:
        print("publishing begins", flush=True)
        time.sleep(float(seconds))
        real(*arguments)
        print("published", flush=True)

    retention.publish = wrapped


def slow_write(rank: int, who: str, seconds: str) -> None:
    """One rank takes long to write its part of a checkpoint."""
    real = Here.write

    def wrapped(self: Any, part: Any) -> None:
        if rank == int(who):
            print("writing begins", flush=True)
            time.sleep(float(seconds))
        real(self, part)

    Here.write = wrapped  # type: ignore[method-assign]


def alone_at_the_end(rank: int) -> None:
    """`if rank == 0:` around something that needs all ranks, at the end of the run."""
    real = trainpkg.train.finish

    def wrapped(t: Any, *arguments: Any) -> None:
        real(t, *arguments)
        if rank == 0:
            dist.all_reduce(torch.zeros(1))
            t.ctx.say("never")

    trainpkg.train.finish = wrapped


def slow_evaluation(rank: int, seconds: str) -> None:
    """Every pass of an evaluation takes so long."""
    real = trainpkg.evaluate.loaded

    def wrapped(*arguments: Any) -> Any:
        for one in real(*arguments):
            time.sleep(float(seconds))
            yield one

    trainpkg.evaluate.loaded = wrapped


def _hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("hangs", flush=True)
    time.sleep(600)


def _eat() -> None:
    kept = []
    while True:
        kept.append(b"\1" * (1 << 24))


def _ask_too_much() -> None:
    torch.zeros(1 << 50)


def _raise() -> None:
    raise ValueError("the loss is nan")


def _signal(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


ENDS: dict[str, Callable[[], Any]] = {
    "kill": _signal(signal.SIGKILL),
    "segv": _signal(signal.SIGSEGV),
    "abrt": _signal(signal.SIGABRT),
    "stop": _signal(signal.SIGSTOP),
    "raise": _raise,
    "exit0": lambda: os._exit(0),
    "exit7": lambda: os._exit(7),
    "leave": lambda: sys.exit(0),
    "hang": _hang,
    "eat": _eat,
    "ask": _ask_too_much,
}
FAULTS: dict[str, Callable[..., None]] = {
    fault.__name__: fault
    for fault in (none, at_birth, before_join, in_step, in_save, anytime, slow_publish, slow_write, alone_at_the_end,
                  slow_evaluation)
}  # fmt: skip
