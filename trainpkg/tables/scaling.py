"""Which runs may be compared for scaling, and how efficient each is.

Efficiency compares throughput per rank, so a fair comparison needs runs that do the same work on the same kind of
device. Two runs are comparable when recipe, device and all config keys are equal except

- those that are the scaling itself: `launch.*` (but not `launch.backend`, `launch.dist_backend`, `launch.env` and
  `launch.preset`), `slurm.*` (but not `slurm.gpu_type` and `slurm.constraint`), `train.global_batch`;
- those that do not change the work of a step: `seed`, `optim.*` (but not `optim.name`), `train.max_steps`,
  `checkpoint.*`, `logging.*`, `evaluate.*`, `smoke.*`.

One process (`single`) counts as `ddp` on one rank. Among comparable runs a run is measured

- weakly: against those with the same number of samples per rank and step, where these have several world sizes;
- else strongly: against those with the same number of samples per step over all ranks, where these do;
- else not at all: an efficiency of 100 percent without anything to compare with would say nothing.

The base is the median throughput per rank of the runs of the smallest world size there; by definition it has 100
percent (several seeds: their median has).
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FREE_KEYS = frozenset({"seed", "strategy", "train.max_steps", "train.global_batch"})
FREE_SECTIONS = ("launch.", "slurm.", "optim.", "checkpoint.", "logging.", "evaluate.", "smoke.")
BINDING_KEYS = frozenset({
    "launch.backend", "launch.dist_backend", "launch.env", "launch.preset", "slurm.gpu_type", "slurm.constraint",
    "optim.name",
})  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What scaling needs of a run; throughput in samples (or tokens) per second over all ranks."""

    recipe: str
    strategy: str | None
    device: str | None
    world_size: int | None
    throughput: float | None
    global_batch: float | None
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Scaling:
    """How a run scales. `series` names the comparison uniquely within the recipe: `fsdp, 32/rank`, `ddp, 256/step`."""

    kind: str | None = None
    series: str | None = None
    base_world_size: int | None = None
    efficiency_percent: float | None = None


def scaling(runs: Sequence[Measured]) -> list[Scaling]:
    """One answer per run, in the order given."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, one in enumerate(runs):
        if one.world_size and one.throughput:
            alike[(one.recipe, *_work(one).items())].append(index)
    groups = list(alike.values())
    found = [Scaling() for _ in runs]
    for members, name in zip(groups, _names([runs[members[0]] for members in groups]), strict=True):
        found_here = {index: Scaling(series=name or None) for index in members}
        # Weak overrides strong where a run takes part in both.
        found_here.update(_compared(runs, members, name, "strong"))
        found_here.update(_compared(runs, members, name, "weak"))
        for index, its in found_here.items():
            found[index] = its
    return found


def _work(one: Measured) -> dict[str, str]:
    """The keys, as text, that runs must share to be comparable."""
    work = {
        key: str(value)
        for key, value in sorted(one.config.items())
        if key in BINDING_KEYS or not (key in FREE_KEYS or key.startswith(FREE_SECTIONS))
    }
    return {"strategy": "ddp" if one.strategy in (None, "single") else one.strategy, "device": str(one.device), **work}


def _compared(runs: Sequence[Measured], members: Sequence[int], name: str, kind: str) -> dict[int, Scaling]:
    """Those members that have peers of another world size and equal batch: per rank (weak) or per step (strong)."""
    peers: dict[float, list[int]] = defaultdict(list)
    for index in members:
        one = runs[index]
        if one.global_batch and one.world_size:
            peers[one.global_batch / one.world_size if kind == "weak" else one.global_batch].append(index)
    found = {}
    for batch, indices in peers.items():
        sizes = {runs[index].world_size or 0 for index in indices}
        if len(sizes) < 2:
            continue
        smallest = min(sizes)
        base = statistics.median(_per_rank(runs[index]) for index in indices if runs[index].world_size == smallest)
        unit = "rank" if kind == "weak" else "step"
        series = f"{name}, {batch:g}/{unit}" if name else f"{batch:g}/{unit}"
        for index in indices:
            found[index] = Scaling(kind, series, smallest, 100 * _per_rank(runs[index]) / base)
    return found


def _per_rank(one: Measured) -> float:
    assert one.throughput and one.world_size, "only measured runs are grouped"
    return one.throughput / one.world_size


def _names(firsts: Sequence[Measured]) -> list[str]:
    """For one run of each group, the keys in which groups of its recipe differ: at most three; none for an only one."""
    works = [_work(first) for first in firsts]
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    counts = Counter(first.recipe for first in firsts)
    present: Counter[tuple[str, str]] = Counter()
    for first, work in zip(firsts, works, strict=True):
        for key, value in work.items():
            values[first.recipe, key].add(value)
            present[first.recipe, key] += 1
    names: list[str] = []
    taken: Counter[tuple[str, str]] = Counter()
    for first, work in zip(firsts, works, strict=True):
        recipe = first.recipe
        differing = [key for key in work if len(values[recipe, key]) > 1 or present[recipe, key] < counts[recipe]]
        name = ", ".join(_short(key, work[key], differing) for key in differing[:3])
        taken[recipe, name] += 1
        names.append(name if taken[recipe, name] == 1 else f"{name} #{taken[recipe, name]}")
    return names


def _short(key: str, value: str, beside: Sequence[str]) -> str:
    """`width=32` for model.width, unless another key beside it ends alike; strategies and devices need no key."""
    leaf = key.rpartition(".")[2]
    if key in ("strategy", "device"):
        return value
    return f"{leaf if sum(other.rpartition('.')[2] == leaf for other in beside) == 1 else key}={value}"
