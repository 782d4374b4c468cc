"""Loader workers: the samples are those of the rank itself, and only the rank decides when they end."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.start import config, records, run_ranks, start, weights
from trainpkg.data.digits import Images
from trainpkg.launch import processes

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


def at_steps(acts: dict[int, Any]) -> None:
    """Do something right after these steps."""
    from trainpkg.runtime.report import Reporter

    plain = Reporter.step

    def step(self: Reporter, number: int, total: int) -> None:
        plain(self, number, total)
        acts.get(number, lambda: None)()

    Reporter.step = step  # type: ignore[method-assign]


def signal_workers() -> None:
    """What Slurm, a terminal or a scheduler sends to a whole step reaches the workers too."""
    pids = processes.descendants(os.getpid())
    print(f"workers {pids};", flush=True)
    for pid in pids:
        for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)


def hang_at_batch(number: int) -> None:
    """Each worker's so many-th batch never comes: it cannot look whether its rank is still there."""
    plain, rank_pid, made = Images.batch, os.getpid(), itertools.count(1)

    def batch(self: Images, indices: torch.Tensor, seeds: torch.Tensor | None = None) -> Any:
        if os.getpid() != rank_pid and next(made) == number:
            time.sleep(600)
        return plain(self, indices, seeds)

    Images.batch = batch  # type: ignore[method-assign]


def signal_workers_and_die() -> None:
    """Rank 1 is killed after six steps of two batches, of which each of its two workers made every other one."""
    acts = {3: signal_workers}
    if os.environ["RANK"] == "1":
        hang_at_batch(7)
        acts[6] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    at_steps(acts)


def workers_of(log: Path) -> list[int]:
    (found,) = re.findall(r"workers \[(.*?)\];", log.read_text())
    return [int(pid) for pid in found.split(",")]


@pytest.mark.failure("F089")
def test_they_outlive_signals_but_not_their_rank_and_change_no_bit(tmp_path: Path) -> None:
    # Dropout draws from the rank's generator, shifts from the sample's seed; five ranks' worth of samples in no epoch.
    keys = {"strategy": "ddp", "model__dropout": 0.2, "data__shift": 2, "train__global_batch": 51}
    more: dict[str, Any] = {"train__max_steps": 12, "logging__eval_every_steps": 6, "train__accumulation": 2}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_ranks(config(**keys, **more), whole, 2)
    ranks = start(config(**keys, **more, data__workers=2), killed, 2, before=signal_workers_and_die)
    assert ranks.wait() == [3, -signal.SIGKILL], ranks.text()
    pids = [pid for log in ranks.logs for pid in workers_of(log)]
    assert len(set(pids)) == 4, "two of each rank"
    ranks.wait_for(lambda: not {pid for pid, _ in processes.groups()} & set(pids), timeout_s=30)
    again = run_ranks(config(**keys, **more, data__workers=1), killed, 2, attempt=2)
    assert "goes on from step-00000004" in again.text()
    assert records(killed) == records(whole)
    one, other = weights(killed), weights(whole)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def kill_a_worker() -> None:
    def kill() -> None:
        if os.environ["RANK"] == "1":
            os.kill(processes.descendants(os.getpid())[0], signal.SIGKILL)

    at_steps({3: kill})


def fail_in_a_worker() -> None:
    plain, rank_pid = Images.batch, os.getpid()

    def batch(self: Images, indices: torch.Tensor, seeds: torch.Tensor | None = None) -> Any:
        if os.environ["RANK"] == "1" and os.getpid() != rank_pid:
            raise IndexError("image 7 is torn")
        return plain(self, indices, seeds)

    Images.batch = batch  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (kill_a_worker, r"RuntimeError: DataLoader worker \(pid \d+\) is killed by signal: Killed"),
        (fail_in_a_worker, r"IndexError: Caught IndexError in DataLoader worker process \d(.|\n)*image 7 is torn"),
    ],
)
def test_one_that_dies_or_fails_ends_the_rank_and_is_named(tmp_path: Path, before: Any, words: str) -> None:
    run = config(strategy="ddp", data__workers=2, train__max_steps=4000, checkpoint__every_steps=4000)
    ranks = start(run, tmp_path, 2, before=before)
    assert ranks.wait() == [3, 1], ranks.text()
    assert re.search(words, ranks.logs[1].read_text()), ranks.text()
    assert {report["rank"]: report["victim"] for report in ranks.events("exception")} == {0: True, 1: False}
