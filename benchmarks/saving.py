"""What a checkpoint costs training: saved in its way, and beside it (checkpoint.asynchronous), over the same steps.

`python -m benchmarks.saving [--strategy ddp|fsdp] [--ranks 2] [--rounds 7]` trains a GPT of about 30 million parameters
in one start of ranks: in turn some steps without a save, with one in their way, and with one beside them, which ends
within them. Cost: how much longer the loop takes than without a save. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainpkg import train
from trainpkg.config import Run
from trainpkg.launch import spawn
from trainpkg.runtime import manifest
from trainpkg.runtime.distributed import connect, context_from_environment, leave
from trainpkg.runtime.report import Reporter
from trainpkg.runtime.signals import StopRequest

WAYS = ("without", "in its way", "beside")
SAVE_AFTER = 2  # steps of each turn


def config(strategy: str, steps: int) -> Run:
    return Run.model_validate({
        "run": "saving", "recipe": "saving", "task": "language", "strategy": strategy,
        "model": {"name": "gpt", "dim": 512, "depth": 9, "heads": 8, "context": 32},
        "data": {"name": "python_text", "max_bytes": 100_000},
        "train": {"max_steps": steps, "global_batch": 2 * int(os.environ["WORLD_SIZE"])},
        "checkpoint": {"every_steps": 10**9, "asynchronous": True, "keep_last": 1},
        "launch": {"device": "cuda" if torch.cuda.is_available() else "cpu"},
    })  # fmt: skip


def one_step(t: train.Training) -> None:
    t.update.begin(0)
    for last, _, batch in t.feed.step(t.state.samples):
        with t.strategy.accumulating(last), t.strategy.autocast():
            loss = t.task.loss(t.strategy.model, batch)
            t.update.scaled(loss).backward()  # type: ignore[no-untyped-call]
    t.update.step(t.state.step + 1, loss)
    t.state.advance(t.run.train.global_batch, None)


def turn(t: train.Training, way: str, num_steps: int) -> float:
    """Seconds of the loop."""
    dist.barrier()
    began = time.perf_counter()
    for i in range(num_steps):
        one_step(t)
        if i == SAVE_AFTER and way != "without":
            t.checkpoints._begin(t.state.step, t.checkpoints._beside if way == "beside" else t.checkpoints._here)
    dist.barrier()
    seconds = time.perf_counter() - began
    flight = t.checkpoints._flight
    if flight is not None and not flight.writer.ready:
        print(f"rank {t.ctx.rank}: the save went on after {num_steps} steps: take more (--steps)", flush=True)
    t.checkpoints.settle()
    return seconds


def rank_main(local_rank: int, strategy: str, folder: str, num_steps: int, rounds: int) -> None:
    torch.set_num_threads(1)
    run = config(strategy, 10**6)
    spec: dict[str, Any] = {"run_dir": folder, "attempt": 1}
    ctx = connect(context_from_environment(os.environ, run, spec, Reporter(local_rank, None), StopRequest()))
    training = train.prepare(ctx, run, Path(folder))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS:
            taken = turn(training, way, num_steps)
            if number:  # the first round makes memory for the copies
                seconds[way].append(taken)
            if ctx.is_main and number:
                print(f"{way}: {taken:.2f} s", flush=True)
    if ctx.is_main:
        folder_of_last = next((Path(folder) / "checkpoints").glob("step-*"))
        files = manifest.read_manifest(folder_of_last)
        size = sum(facts["bytes"] for facts in files.values()) / 1e6
        report(training.num_parameters, size, seconds, num_steps)
    leave(ctx)
    sys.stdout.flush()
    os._exit(0)


def report(num_parameters: int, size_mb: float, seconds: dict[str, list[float]], num_steps: int) -> None:
    without, here, beside = (seconds[way] for way in WAYS)
    costs = [statistics.median(a - b for a, b in zip(way, without, strict=True)) for way in (here, beside)]
    print(
        f"{num_parameters / 1e6:.1f} M parameters, {size_mb:.0f} MB; {num_steps} steps without a save: "
        f"{statistics.median(without):.2f} s; a save in its way costs {costs[0]:.3f} s, beside it {costs[1]:.3f} s: "
        f"{costs[1] / costs[0]:.1%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="ddp", choices=("ddp", "fsdp"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=16, help="of a turn")
    parser.add_argument("--folder", help="on the file system to measure; left out: a temporary one")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(dir=options.folder)
    try:
        spawn(rank_main, (options.strategy, folder, options.steps, options.rounds), nprocs=options.ranks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
