"""What is trained, by everybody: models, samples, their order, the optimiser's settings; and the peers' clock.

A case is a recipe of this package. `tiny` is none: one linear layer on random numbers, for which a script needs nothing
but torch, so that its start-up is that of its launcher and framework.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler, TensorDataset

OPTIM = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.01}
SAME = {"lr": 1e-3, "weight_decay": 0.01, "decay": "all", "warmup_steps": 0, "schedule": "constant", "clip_norm": None}
IMAGES: dict[str, Any] = {"task": "images", "data": {"name": "digits"}, "optim": SAME}
TEXT: dict[str, Any] = {"task": "language", "data": {"name": "python_text", "max_bytes": 1_000_000}, "optim": SAME}
# steps: (before the clock starts, all of them); told_every divides both
CASES: dict[str, dict[str, Any]] = {
    "conv": IMAGES | {"model": {"name": "conv", "width": 32, "dropout": 0.0}, "batch": 64, "steps": (100, 400)},
    "vit": IMAGES | {"model": {"name": "vit", "dim": 48, "depth": 2, "heads": 4, "patch": 2}, "batch": 64,
                     "steps": (100, 400)},
    "gpt": TEXT | {"model": {"name": "gpt", "dim": 256, "depth": 4, "heads": 4, "context": 128}, "batch": 8,
                   "steps": (5, 30)},
}  # fmt: skip
TINY_SAMPLES = 1024
TELL_STEPS = {"conv": 100, "vit": 100, "gpt": 5}


def recipe(case: str, world_size: int, steps: int | None = None, as_bare: bool = False, **more: Any) -> dict[str, Any]:
    """The keys of a run of this package. A batch belongs to a rank. `as_bare`: no look for NaN, as in peers' loops."""
    tree = {name: value for name, value in CASES[case].items() if name not in ("batch", "steps")}
    train = {"max_steps": steps or CASES[case]["steps"][1], "global_batch": CASES[case]["batch"] * world_size}
    train |= {"nonfinite": "ignore"} if as_bare else {}
    logging = {"every_steps": TELL_STEPS[case], "eval_every_steps": 10**6}
    return tree | {"train": train, "logging": logging, "checkpoint": {"every_steps": 10**6}} | more


class Work:
    """One case as a peer sees it: model, samples, loss."""

    def __init__(self, case: str, world_size: int, steps: int | None = None) -> None:
        self.case, self.world_size = case, world_size
        self.batch = 16 if case == "tiny" else int(CASES[case]["batch"])
        before, most = (0, 1) if case == "tiny" else CASES[case]["steps"]
        self.steps: int = steps or most
        self.before: int = min(before, self.steps - 1)
        if case != "tiny":
            from trainpkg.config import Run

            self._run = Run.model_validate({"run": case, "recipe": case, **recipe(case, world_size, self.steps)})

    def model(self) -> nn.Module:
        """With the weights that a run of this package begins with."""
        if self.case == "tiny":
            torch.manual_seed(0)
            return nn.Linear(64, 64)
        from trainpkg import models
        from trainpkg.runtime import initial

        module = models.build(self._run.model)
        initial.fill(module, self._run.seed, torch.device("cpu"))
        return module

    @functools.cache  # noqa: B019  one per process
    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        """In memory."""
        if self.case == "tiny":
            return TensorDataset(torch.randn(TINY_SAMPLES, 64))
        from trainpkg import data

        train = data.build(self._run, torch.device("cpu")).train
        return TensorDataset(*train.batch(torch.arange(train.num_samples)))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0])
        if self.case == "tiny":
            return out.square().mean()
        return F.cross_entropy(out.flatten(0, -2), batch[1].flatten())

    def sampler(self, rank: int | None) -> Sampler[int]:
        """The samples of a rank, or (None) of all, in the order of this package."""
        length = self.batch * self.steps * (self.world_size if rank is None else 1)
        return InOrder(length, lambda: self._samples(rank))

    def _samples(self, rank: int | None) -> Iterator[int]:
        share, whole = self.batch, self.batch * self.world_size
        if self.case == "tiny":
            num = (whole if rank is None else share) * self.steps
            yield from (place % TINY_SAMPLES for place in range(num))
            return
        from trainpkg.data.order import Order

        order = Order(len(self.dataset()), self._run.seed)  # type: ignore[arg-type]
        first, count = (0, whole) if rank is None else (rank * share, share)
        for step in range(self.steps):
            yield from order.indices(step * whole + first, count).tolist()


class InOrder(Sampler[int]):
    """So many samples, once, a step's worth at a time."""

    def __init__(self, length: int, samples: Callable[[], Iterator[int]]) -> None:
        self._length, self._samples = length, samples

    def __iter__(self) -> Iterator[int]:
        return self._samples()

    def __len__(self) -> int:
        return self._length


class Clock:
    """Told of each step by a peer's loop; the main rank says what `benchmarks` reads.

    Lines: `rank R is process P`, `all ranks joined`, `step 1 of N`, and at the end a JSON object with the rate from
    step `before` to the last. The final weights, in the model's order, go to the file that BENCH_WEIGHTS names.
    """

    def __init__(self, work: Work, rank: int, joined: bool = True) -> None:
        self.work, self.rank, self.done, self._began, self._end = work, rank, 0, 0.0, 0.0
        print(f"rank {rank} is process {os.getpid()}", flush=True)
        if joined:
            self.joined()

    def joined(self) -> None:
        self._say("all ranks joined")

    def step(self) -> None:
        self.done += 1
        if self.done == 1:
            self._say(f"step 1 of {self.work.steps}")
        if self.done == self.work.before:
            self._began = time.perf_counter()
        if self.done == self.work.steps:
            self._end = time.perf_counter()

    @property
    def tells(self) -> bool:
        """Whether a loop prints its loss after this step."""
        return self.done % TELL_STEPS.get(self.work.case, 1) == 0

    def finish(self, model: nn.Module) -> None:
        """On all ranks: gathers what is sharded."""
        if place := os.environ.get("BENCH_WEIGHTS"):
            weights = [whole(parameter) for parameter in model.parameters()]
            if self.rank == 0:
                torch.save(weights, place)
        num_samples = (self.done - self.work.before) * self.work.batch * self.work.world_size
        rate = num_samples / (self._end - self._began) if self._began else 0.0
        self._say(json.dumps({"samples_per_s": rate}))

    def _say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


def whole(tensor: Tensor) -> Tensor:
    gathered: Tensor = tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    return gathered
