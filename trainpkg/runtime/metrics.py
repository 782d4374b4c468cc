"""What happened, as JSON lines, and how fast it was. Written by global rank 0 alone; tables and plots derive from it.

`metrics.jsonl` is appended over attempts and flushed per line; a line torn by a kill stays alone on its line.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from trainpkg.metric_lines import strict as strict  # the trainer's other files need it too
from trainpkg.runtime.distributed import RankContext
from trainpkg.runtime.trackers import NoTracker, Tracker, numbers

T = TypeVar("T")


class MetricsFile:
    """Appends records to `path` on rank 0, and tells the tracker; does nothing on other ranks."""

    def __init__(self, ctx: RankContext, path: Path, tracker: Tracker | None = None) -> None:
        self.path = path
        self._common = {"attempt": ctx.attempt, "generation": ctx.generation}
        self._stream = None
        self._tracker = tracker or NoTracker()
        if ctx.is_main:
            torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
            self._stream = path.open("a")
            if torn:
                self._stream.write("\n")

    def write(self, kind: str, **values: Any) -> None:
        """One record; NaN and infinity, which JSON lacks, become null with a note."""
        if self._stream is None:
            return
        clean, odd = strict(values)
        record = {"kind": kind, **self._common, **clean}
        if odd:
            record["note"] = ", ".join(odd)
        self._stream.write(json.dumps(record, allow_nan=False) + "\n")
        self._stream.flush()
        self._tracker.metrics(record["step"], numbers(record))

    def close(self, verdict: str = "finished") -> None:
        if self._stream is not None:
            self._stream.close()
        self._tracker.close(verdict)


class Meter:
    """Wall time of this rank's steps since the last record: whole steps, and the part that waited for data.

    Evaluation and saving lie between steps and do not count. On a GPU a step ends when its work is queued; only a step
    after which the ranks meet waits for the device within its own time, so the time of an interval is that of its work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.num_steps = 0
        self.steps_s = 0.0
        self.data_s = 0.0
        self.last_s = 0.0
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self, wait: bool) -> None:
        """The step is over; `wait`: also on the device."""
        if wait and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.last_s = time.perf_counter() - self._began
        self.steps_s += self.last_s
        self.num_steps += 1

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time until each is there counts as waiting for data."""
        iterator = iter(items)
        while True:
            asked = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self.data_s += time.perf_counter() - asked
            yield item

    def reset(self) -> None:
        self.num_steps, self.steps_s, self.data_s = 0, 0.0, 0.0


def memory_mb(device: torch.device) -> float:
    """Most memory that this rank held so far, in 10^6 bytes: of the GPU, or resident memory of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class Progress:
    """One line per record in a log; one line that rewrites itself on a terminal. Rank 0 only."""

    def __init__(self, ctx: RankContext, total: int) -> None:
        self._ctx, self._total = ctx, total
        self._terminal = sys.stdout.isatty()

    def show(self, step: int, record: dict[str, Any]) -> None:
        if not self._ctx.is_main:
            return
        left_s = (self._total - step) * record["step_time_s"]
        rate = record["tokens_per_second"] or record["samples_per_second"]
        unit = "tokens" if record["tokens_per_second"] else "samples"
        text = (
            f"step {step}/{self._total}  loss {record['loss']:.4f}  lr {record['lr']:.2e}  "
            f"grad {record['grad_norm']:.2f}  {rate:,.0f} {unit}/s  left {left_s:.0f} s"
        )
        if self._terminal:
            print(f"\r{text}\x1b[K", end="\n" if step >= self._total else "", flush=True)
        else:
            print(text, flush=True)


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records of a metrics.jsonl; a torn line is skipped."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records
