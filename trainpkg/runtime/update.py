"""From gradients to weights: loss scale, clipping, what a step with NaN or infinity does, averaged weights.

Decisions are made from the global norm of the gradients, which all ranks have in common, and on the device: a step
waits for nothing. What it counted is read when the ranks meet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trainpkg.config import Ema, Run
from trainpkg.errors import UserError
from trainpkg.runtime import insight, optim
from trainpkg.runtime.mesh import local
from trainpkg.runtime.parallel import Single

# torch.amp.GradScaler's own figures
FIRST_SCALE, GROWTH, BACKOFF, GROWTH_STEPS = 65536.0, 2.0, 0.5, 2000


class Update:
    """The optimizers of a run, and how they are stepped."""

    def __init__(self, run: Run, strategy: Single) -> None:
        self.strategy = strategy
        self.optimizers = optim.build(run.optim, strategy.module, run.train.global_batch)
        self.layers = insight.layers(run.logging.layers, strategy.module, strategy.sum_over_shards)
        self.average = Average(run.ema, strategy) if run.ema else NoAverage()
        self.lr = 0.0
        self._run = run
        self._peak = optim.peak(run.optim, run.train.global_batch)
        device = strategy.ctx.device
        self._scales = run.train.precision == "fp16"
        self._looks = run.train.nonfinite != "ignore"
        # Else only records ask for the norm. It reads all gradients, and ranks wait for it where those are sharded.
        self._needs_norm = self._looks or self._scales or run.optim.clip_norm is not None
        self._scale = torch.full((), FIRST_SCALE if self._scales else 1.0, device=device)
        self._good_steps = torch.zeros((), device=device)
        self._fine = torch.zeros((), dtype=torch.bool, device=device)
        self._skipped = torch.zeros((), device=device)  # steps that changed no weight, since step 0
        self._first_bad = torch.zeros((), device=device)  # the first step with a NaN that stops the run; 0: none

    def begin(self, step: int) -> None:
        """The learning rate of the step that follows `step` done ones."""
        share = optim.schedule(self._run.optim, step, self._run.train.max_steps)
        self.lr = self._peak * share
        optim.set_learning_rate(self.optimizers, share)

    def scaled(self, loss: Tensor) -> Tensor:
        """What backward starts from."""
        return loss * self._scale if self._scales else loss

    def step(self, step: int, loss: Tensor, records: bool = False) -> Tensor | None:
        """Change the weights for the `step`-th time; returns the gradients' norm (see `Single.clip`).

        `loss`: of the last micro-batch, without scale; under fp16 it tells NaN from mere overflow. `records`: `record`
        will be asked for this step; else the norm may be None, where neither clipping nor a look for NaN needs it.
        """
        if records:
            self.layers.before(self._scale)
        norm = None
        if records or self._needs_norm:
            norm = self.strategy.clip(self._run.optim.clip_norm, self._scale if self._scales else None)
        bad = ~torch.isfinite(norm) if norm is not None and self._looks else self._fine
        for optimizer in self.optimizers:
            self._step_unless(bad, optimizer)
            optimizer.zero_grad(set_to_none=True)
        self._skipped += bad
        if self._run.train.nonfinite == "stop":
            stops = bad & self._hopeless(loss) if self._scales else bad
            self._first_bad = torch.where((self._first_bad == 0) & stops, float(step), self._first_bad)
        if self._scales:
            self._adapt(bad)
        self.average.update(step)
        return norm

    def _step_unless(self, bad: Tensor, optimizer: torch.optim.Optimizer) -> None:
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            # How torch.amp.GradScaler tells a fused optimizer to change nothing, without asking the device.
            optimizer.grad_scale, optimizer.found_inf = None, bad.float()  # type: ignore[attr-defined]
            optimizer.step()
        elif not bad.item():
            optimizer.step()

    def _hopeless(self, loss: Tensor) -> Tensor:
        """fp16: the scale has come down to 1, so that it is not the scale that overflows."""
        return (self._scale <= 1.0) | ~torch.isfinite(loss.detach())

    def _adapt(self, bad: Tensor) -> None:
        good = torch.where(bad, 0.0, self._good_steps + 1)
        grows = good >= GROWTH_STEPS
        self._scale = torch.where(bad, self._scale * BACKOFF, torch.where(grows, self._scale * GROWTH, self._scale))
        self._good_steps = torch.where(grows, 0.0, good)

    # -- read where the ranks meet

    def first_bad(self) -> float:
        """The first step with a NaN that this rank knows of; 0: none. Waits for the device."""
        return float(self._first_bad.item())

    def record(self) -> dict[str, Any]:
        """What a record says about the steps so far. Collective; waits for the device."""
        scale = {"loss_scale": self._scale.item()} if self._scales else {}
        return {"skipped_steps": int(self._skipped.item()), **scale, **self.layers.record()}

    def refuse(self, step: int) -> UserError:
        """What ends the run after a NaN in step `step`."""
        optim, train = self._run.optim, self._run.train
        return UserError(
            f"the gradients of step {step} hold NaN or infinity, and train.nonfinite = 'stop'; they changed no weight. "
            f"optim.lr = {optim.lr:g}, optim.clip_norm = {optim.clip_norm}, precision = {train.precision!r}. "
            "Lower the learning rate, clip, take bf16 or fp32, look for NaN in the data, or set train.nonfinite: skip"
        )

    # -- saved with a checkpoint

    def state(self) -> dict[str, float]:
        return {
            "scale": self._scale.item(),
            "good_steps": self._good_steps.item(),
            "skipped": self._skipped.item(),
        }

    def load(self, saved: Mapping[str, float]) -> None:
        self._scale.fill_(saved["scale"] if self._scales else 1.0)
        self._good_steps.fill_(saved["good_steps"])
        self._skipped.fill_(saved["skipped"])


class NoAverage:
    """The run has no averaged weights."""

    def update(self, step: int) -> None:
        """Nothing to do."""

    def state(self) -> dict[str, Tensor]:
        return {}

    def restart(self) -> None:
        """Nothing to do."""

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """The model has its own weights, before, inside and after."""
        yield


class Average(NoAverage):
    """An exponential moving average of the trained weights, each rank's shards by themselves."""

    def __init__(self, config: Ema, strategy: Single) -> None:
        self._config, self._strategy = config, strategy
        self._weights = {name: p for name, p in strategy.module.named_parameters() if p.requires_grad}
        self._averages = {name: p.detach().clone() for name, p in self._weights.items()}
        first: dict[Tensor, str] = {p: name for name, p in self._weights.items()}
        every = strategy.module.named_parameters(remove_duplicate=False)
        self._names = {name: first[p] for name, p in every if p in first}  # tied ones have several

    @torch.no_grad()
    def update(self, step: int) -> None:
        if step % self._config.every_steps == 0:
            torch._foreach_lerp_(self._locals(self._averages), self._locals(self._weights), 1 - self._config.decay)

    def state(self) -> dict[str, Tensor]:
        """The averages by the names of the weights, sharded as those are; loaded in place."""
        return {name: self._averages[first] for name, first in self._names.items()}

    def restart(self) -> None:
        """Begin anew from the weights of now."""
        torch._foreach_copy_(self._locals(self._averages), self._locals(self._weights))

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        weights, averages = self._locals(self._weights), self._locals(self._averages)
        kept = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, averages)
        torch._foreach_copy_(averages, kept)
        self._strategy.gather_again()

    @staticmethod
    def _locals(tensors: Mapping[str, Any]) -> list[Tensor]:
        return [local(tensor.detach()) for tensor in tensors.values()]
