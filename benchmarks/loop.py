"""What our loop costs per step beyond forward, backward, the optimiser's step and communication.

The trainer's own loop runs as it is; clocks are put around the calls of those four. What is left of a step is the
loop's own: fetching the batch, the gradients' norm, counting, records. `clock`: that. `torch profiler`: the same ranges
as seen by torch's profiler, which makes what is inside of them slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.harness import Figure, Part, Row, Scale, interleaved
from benchmarks.inside import in_ranks

RANKS = 2
RANGES = ("forward", "backward", "optimiser", "communication")


class Ranges:
    """Seconds spent in each range, and the step at which the window begins and ends."""

    def __init__(self, first: int, last: int, profiles: bool) -> None:
        self.first, self.last, self.profiles = first, last, profiles
        self.seconds = self.within = dict.fromkeys(RANGES, 0.0)
        self.step = 0
        self.began = self.ended = 0.0
        self._profiler: Any = None

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        from torch.profiler import record_function

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            with record_function(f"bench::{name}"):
                result = function(*args, **kwargs)
            self.seconds[name] += time.perf_counter() - began
            return result

        def plain(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds[name] += time.perf_counter() - began
            return result

        return timed if self.profiles else plain

    def next_step(self) -> None:
        """Called as a step begins."""
        from torch.profiler import ProfilerActivity, profile

        if self.step == self.first:
            if self.profiles:
                self._profiler = profile(activities=[ProfilerActivity.CPU])
                self._profiler.__enter__()
            self.seconds = dict.fromkeys(RANGES, 0.0)
            self.began = time.perf_counter()
        if self.step == self.last:
            self.ended = time.perf_counter()
            self.within = dict(self.seconds)
            if self._profiler is not None:
                self._profiler.__exit__(None, None, None)
        self.step += 1

    def row(self) -> Row:
        num_steps, seconds = self.last - self.first, dict(self.within)
        if self._profiler is not None:
            averages = {event.key: event.cpu_time_total / 1e6 for event in self._profiler.key_averages()}
            seconds = {name: averages.get(f"bench::{name}", 0.0) for name in RANGES}
        whole = self.ended - self.began
        own = whole - sum(seconds.values())
        parts = {f"{name}_ms": 1000 * value / num_steps for name, value in seconds.items()}
        return {
            "step_ms": 1000 * whole / num_steps,
            "own_ms": 1000 * own / num_steps,
            "own_share": own / whole,
            **parts,
        }


def look(ctx: Any, run: Any, folder: Path, first: int, last: int, profiles: bool) -> list[Row]:
    """On every rank: train, with clocks around the four."""
    import torch

    from trainpkg import train

    ranges = Ranges(first, last, profiles)
    training = train.prepare(ctx, run, folder)
    training.checkpoints.maybe_save = lambda step: None  # type: ignore[method-assign]
    training.task.loss = ranges.around("forward", training.task.loss)  # type: ignore[method-assign]
    torch.Tensor.backward = ranges.around("backward", torch.Tensor.backward)  # type: ignore[method-assign]
    train.gather_rows = ranges.around("communication", train.gather_rows)
    for optimizer in training.update.optimizers:
        optimizer.step = ranges.around("optimiser", optimizer.step)  # type: ignore[method-assign]
    real = training.feed.step

    def step(position: int) -> Iterator[Any]:
        ranges.next_step()
        yield from real(position)

    training.feed.step = step  # type: ignore[method-assign]
    train.loop(training)
    return [ranges.row()]


def measure(scale: Scale) -> Iterator[Row]:
    for case in ("gpt", "conv") if scale.full else ("gpt",):
        first, last = (2, 4) if scale.tiny else (5, 25) if case == "gpt" else (100, 400)
        tree = workload.recipe(case, RANKS, last + 2, strategy="ddp")

        def once(profiles: bool, tree: Any = tree, first: int = first, last: int = last) -> Row:
            return in_ranks(look, RANKS, tree, first, last, profiles)[0]

        ways = {"clock": lambda once=once: once(False), "torch profiler": lambda once=once: once(True)}
        yield from interleaved(f"{case} ddp", ways, scale.repetitions, warm_up=False, once=("torch profiler",))


PART = Part(
    "loop",
    "What our loop costs per step",
    "less than 1 % of the GPT's step",
    "clock",
    (
        Figure("step_ms", "step", "ms", None),
        Figure("forward_ms", "forward", "ms", None),
        Figure("backward_ms", "backward with its communication", "ms", None),
        Figure("optimiser_ms", "optimiser", "ms", None),
        Figure("communication_ms", "other communication", "ms", None),
        Figure("own_ms", "the loop's own", "ms", None),
        Figure("own_share", "share of the step", "", None),
    ),
    measure,
)
