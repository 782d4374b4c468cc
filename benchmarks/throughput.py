"""Training throughput on two ranks of one thread: our trainer beside a tutorial's loop and frameworks.

All train the same model from the same weights on the same samples in the same order with the same AdamW (`workload`).
`apart` says it of each way: how far its final weights are from ours, as a share of how far ours have come; a way that
is far has failed. Rates are of the steps after the first ones, by each loop's own clock; whole-process seconds stand
apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import ours, workload
from benchmarks.commands import Commands, Unsuccessful, folder, python
from benchmarks.harness import Figure, Part, Plot, Row, Scale, interleaved
from benchmarks.launch import PEERS, torchrun

RANKS = 2
LIMIT_S = 600.0
SHORT = {"conv": 300, "gpt": 20}  # steps without --full
APART = 0.25  # seen: 0 from fused AdamW, 0.04 from the other one's rounding, 0.63 from another order of the samples
FULL: dict[tuple[str, str], tuple[str, ...]] = {
    ("conv", "ddp"): ("plain loop", "plain loop, tuned", "Lightning", "accelerate"),
    ("vit", "ddp"): ("plain loop", "Lightning", "accelerate"),
    ("gpt", "ddp"): ("plain loop", "plain loop, tuned", "Lightning", "accelerate", "HF Trainer"),
    ("gpt", "fsdp"): ("plain loop", "Lightning"),
}
BRIEF: dict[tuple[str, str], tuple[str, ...]] = {  # without --full
    ("conv", "ddp"): ("plain loop", "plain loop, tuned"),
    ("gpt", "ddp"): ("plain loop", "plain loop, tuned", "Lightning", "accelerate"),
    ("gpt", "fsdp"): ("plain loop",),
}


@dataclass(frozen=True)
class Case:
    """What all ways train. `place`: a folder in which each leaves its final weights, ours first."""

    name: str
    strategy: str
    steps: int | None
    place: Path

    @property
    def work(self) -> workload.Work:
        return workload.Work(self.name, RANKS, self.steps)

    def ours(self) -> Mapping[str, float]:
        with folder() as place:
            recipe = workload.recipe(self.name, RANKS, self.steps, as_bare=True, strategy=self.strategy)
            config = ours.project(place / "project", recipe, {"gpus_per_node": RANKS})
            with Commands([ours.command(config)]) as started:
                took_s = started.wait(LIMIT_S)
            records = {record["step"]: record for record in ours.records(config)}
            weights = ours.weights(config)
        torch.save([weights[name] for name, _ in self.work.model().named_parameters()], self.place / "ours")
        first, last = records[self.work.before], records[self.work.steps]
        rate = (last["samples"] - first["samples"]) / (last["time_s"] - first["time_s"])
        return {"samples_per_s": rate, "whole_s": took_s}

    def theirs(self, way: str) -> Mapping[str, float]:
        place = self.place / way
        with Commands([self.command(way)], {"BENCH_WEIGHTS": str(place)}) as started:
            took_s = started.wait(LIMIT_S, well=False)
            told = [line for line in started.text.splitlines() if line.startswith('{"samples_per_s"')]
            if not told:
                started.wait(LIMIT_S)
                raise Unsuccessful("it told no rate")
        apart = share_apart(list(self.work.model().parameters()), torch.load(self.place / "ours"), torch.load(place))
        if not apart < APART:
            raise Unsuccessful(f"it trained something else: its weights end {apart:.2g} of the way from ours")
        return {**json.loads(told[-1]), "whole_s": took_s, "apart": apart}

    def command(self, way: str) -> list[str]:
        count = [str(self.steps)] if self.steps else []
        if way == "Lightning":
            script = str(PEERS / "lightning_loop.py")
            return python(script, self.name, self.strategy, *count, "--ranks", str(RANKS))
        name, *rest = {
            "plain loop": ["plain.py", self.name, self.strategy, *count],
            "plain loop, tuned": ["plain.py", self.name, self.strategy, *count, "--tuned"],
            "accelerate": ["accelerate_loop.py", self.name, *count],
            "HF Trainer": ["trainer_loop.py", self.name, *count],
        }[way]
        return torchrun("static", [str(PEERS / name), *rest], (1, RANKS))[0]


def share_apart(begin: Sequence[Tensor], ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Distance of two trainings' ends, over the way from the beginning to the first one's."""
    start, end, other = (torch.cat([tensor.detach().flatten() for tensor in its]) for its in (begin, ours, theirs))
    return ((other - end).norm() / (end - start).norm()).item()


def measure(scale: Scale) -> Iterator[Row]:
    for (name, strategy), peers in (FULL if scale.full or scale.tiny else BRIEF).items():
        if scale.tiny and name != "gpt":
            continue
        steps = 2 * workload.TELL_STEPS[name] if scale.tiny else None if scale.full else SHORT[name]
        with folder() as place:
            case = Case(name, strategy, steps, place)
            ways = {"ours": case.ours} | {way: partial(case.theirs, way) for way in peers}
            yield from interleaved(f"{name} {strategy}", ways, scale.repetitions, warm_up=False)


PART = Part(
    "throughput",
    "Training throughput, 2 ranks x 1 thread",
    "at least 1.3 x the plain loop on the conv net, 1.0 x on the GPT, ahead of every framework",
    "ours",
    (
        Figure("samples_per_s", "samples per second", "1/s", "more"),
        Figure("whole_s", "whole command", "s"),
        Figure("apart", "weights apart", "share", None),
    ),
    measure,
    (Plot("bars", "samples_per_s", "plain loop"),),
)
