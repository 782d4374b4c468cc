"""Looking inside a training on request: norms per block in the records, a profiler's trace of some steps.

Null objects where nothing is asked for; what costs time is done in the steps that a record or the window covers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainpkg.config import Profile
from trainpkg.runtime.distributed import RankContext
from trainpkg.runtime.mesh import local


class NoLayers:
    """No norms per block."""

    def before(self, scale: Tensor) -> None:
        """Gradients are there, `scale` times too large and not yet clipped; this step will be recorded."""

    def record(self) -> dict[str, Any]:
        """What the record of this step says. Collective."""
        return {}


class Layers(NoLayers):
    """Of each block, and of all else as `rest`: the gradient's norm and how far the step moved the weights.

    `update_ratio` is |new - old| / |old|; around 1e-3 is a common rule for Adam
    (https://karpathy.github.io/neuralnets, "ratio of updates to data").
    """

    def __init__(self, module: nn.Module, sum_over_shards: Callable[[Tensor], Tensor]) -> None:
        self._sum = sum_over_shards
        self._groups: dict[str, list[nn.Parameter]] = {}
        for name, parameter in module.named_parameters():
            words = name.split(".")
            group = ".".join(words[:2]) if words[0] == "blocks" else "rest"
            self._groups.setdefault(group, []).append(parameter)
        self._old: list[Tensor] = []
        self._gradients: Tensor | None = None

    @torch.no_grad()
    def before(self, scale: Tensor) -> None:
        self._gradients = self._squares(lambda p: None if p.grad is None else local(p.grad)) / scale.square()
        self._old = [local(p.detach()).clone() for group in self._groups.values() for p in group]

    @torch.no_grad()
    def record(self) -> dict[str, Any]:
        if self._gradients is None:
            return {}
        old = iter(self._old)
        sizes = self._squares(lambda p: next(old))
        old = iter(self._old)
        moves = self._squares(lambda p: local(p.detach()) - next(old))
        norms = self._sum(torch.stack([self._gradients, sizes, moves])).sqrt()
        self._gradients, self._old = None, []
        gradients, weights, updates = norms.tolist()
        return {
            "layers": {
                name: {"grad_norm": gradient, "update_ratio": update / max(weight, 1e-30)}
                for name, gradient, weight, update in zip(self._groups, gradients, weights, updates, strict=True)
            }
        }

    def _squares(self, part: Callable[[nn.Parameter], Tensor | None]) -> Tensor:
        """Sum of squares per group, of this rank's part."""
        sums = []
        for group in self._groups.values():
            parts = [tensor for p in group if (tensor := part(p)) is not None]
            sums.append(torch.stack(torch._foreach_norm(parts)).square().sum() if parts else torch.zeros(()))
        return torch.stack([one.to(sums[0].device) for one in sums])


class NoWindow:
    """Nothing is profiled."""

    def step(self, number: int) -> None:
        """Step `number` (from 1) begins."""

    def close(self) -> None:
        """No step follows."""


class Window(NoWindow):
    """torch's profiler over some steps of this rank, into `folder`/steps-A-B.rank-K.json.gz (a Chrome trace).

    With `memory`, on a GPU also steps-A-B.rank-K.pickle, for https://pytorch.org/memory_viz.
    """

    def __init__(self, config: Profile, ctx: RankContext, folder: Path) -> None:
        self._config, self._ctx = config, ctx
        self._name = folder / f"steps-{config.first_step}-{config.last_step}.rank-{ctx.rank}"
        self._profiler: Any = None

    def step(self, number: int) -> None:
        if self._profiler is None and self._config.first_step <= number <= self._config.last_step:
            self._open()
        elif number > self._config.last_step:
            self.close()

    def _open(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._ctx.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            if self._config.memory:
                torch.cuda.memory._record_memory_history()
        self._profiler = torch.profiler.profile(activities=activities, profile_memory=self._config.memory)
        self._profiler.start()

    def close(self) -> None:
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        try:
            self._name.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(f"{self._name}.json.gz")
            if self._config.memory and self._ctx.device.type == "cuda":
                torch.cuda.memory._dump_snapshot(f"{self._name}.pickle")  # type: ignore[no-untyped-call]
                torch.cuda.memory._record_memory_history(enabled=None)
        except OSError as error:  # a look inside ends no run
            self._ctx.warn(f"the profile cannot be written to {self._name}: {error}")
            return
        self._ctx.say(f"profile of steps {self._config.first_step} to {self._config.last_step}: {self._name}.json.gz")


def window(config: Profile | None, ctx: RankContext, folder: Path) -> NoWindow:
    """The profiler's window of this rank."""
    asked = config is not None and ctx.rank in config.ranks
    return Window(config, ctx, folder) if asked and config is not None else NoWindow()


def layers(wanted: bool, module: nn.Module, sum_over_shards: Callable[[Tensor], Tensor]) -> NoLayers:
    return Layers(module, sum_over_shards) if wanted else NoLayers()
