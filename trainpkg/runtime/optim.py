"""Optimizers and the learning-rate schedule, a function of the step: there is no state of it to save.

What a step does with gradients (scale, clipping, NaN) belongs to `update`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainpkg.config import Optim

# Of Newton-Schulz, chosen by Keller Jordan for the steepest slope at zero: https://kellerjordan.github.io/posts/muon
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def build(config: Optim, module: nn.Module, global_batch: int) -> list[torch.optim.Optimizer]:
    """Fused AdamW or SGD, or Muon for the matrices of the blocks with AdamW for all else.

    Each group says its peak learning rate as `peak_lr`, and its weight decay, which biases, norms and other vectors are
    spared unless `decay` is `all`.
    """
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    lr = peak(config, global_batch)
    found: list[torch.optim.Optimizer] = []
    if config.name == "muon":
        matrices = [p for name, p in parameters.items() if name.startswith("blocks.") and p.ndim == 2]
        decay = config.weight_decay
        group = {"params": matrices, "peak_lr": config.muon_lr, "weight_decay": decay, "momentum": config.momentum}
        found.append(Muon([group]))
        chosen = set(map(id, matrices))
        parameters = {name: p for name, p in parameters.items() if id(p) not in chosen}
    spared = [p for p in parameters.values() if p.ndim < 2 and config.decay == "matrices"]
    spared_ids = set(map(id, spared))
    decaying = [p for p in parameters.values() if id(p) not in spared_ids]
    groups = [
        {"params": params, "peak_lr": lr, "weight_decay": decay}
        for params, decay in ((decaying, config.weight_decay), (spared, 0.0))
        if params
    ]
    if config.name == "sgd":
        # torch 2.13 has no fused SGD for sharded parameters
        fused = not any(isinstance(p, DTensor) for p in parameters.values())
        found.append(torch.optim.SGD(groups, lr=lr, momentum=config.momentum, fused=fused))
    else:
        found.append(torch.optim.AdamW(groups, lr=lr, betas=(config.beta1, config.beta2), fused=True))
    return found


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised, for matrices [out, in]: the same on any number of ranks.

    Of a sharded matrix every rank gathers the whole update and computes the same result, of which it keeps its part:
    torch.optim.Muon works on the shards with another outcome. In fp32 on CPUs, bf16 elsewhere. The update is scaled by
    sqrt(max(1, out / in)), as its author does.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": 0.95, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                average = state["momentum_buffer"]
                share = group["momentum"]
                average.mul_(share).add_(parameter.grad, alpha=1 - share)
                update = parameter.grad.mul(1 - share).add_(average, alpha=share)  # Nesterov's
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(orthogonal(update), alpha=-group["lr"])


def orthogonal(update: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly, of a matrix that may be sharded; sharded as it came."""
    whole = update.full_tensor() if isinstance(update, DTensor) else update
    result = newton_schulz(whole)
    if isinstance(update, DTensor):
        # every rank has it all: nothing is sent
        return distribute_tensor(result, update.device_mesh, update.placements, src_data_rank=None)
    return result


def newton_schulz(matrix: Tensor, num_rounds: int = 5) -> Tensor:
    """U V^T of the singular values of `matrix` [m, n], its values about 0.7 to 1.2, times Muon's scale."""
    a, b, c = COEFFICIENTS
    x = matrix if matrix.device.type == "cpu" else matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(num_rounds):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if tall else x
    scale: float = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
    result: Tensor = x.to(matrix.dtype) * scale
    return result


def peak(config: Optim, global_batch: int) -> float:
    """The highest learning rate: `lr`, or what the scaling rule makes of it for this batch. Nodes play no part."""
    if config.base_batch is None:
        return config.lr
    times = global_batch / config.base_batch
    return config.lr * (times if config.lr_scaling == "linear" else math.sqrt(times))


def set_learning_rate(optimizers: list[torch.optim.Optimizer], share: float) -> None:
    """`share` of its peak for each group."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak_lr"]


def schedule(config: Optim, step: int, max_steps: int) -> float:
    """Share of the peak for the optimizer step that follows `step` done ones: linear warm-up, then `schedule`."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    least = config.min_lr_ratio
    first = config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        first = max(first, max_steps - round(config.cooldown * max_steps))
    progress = min(max(step - first, 0) / max(max_steps - first, 1), 1.0)
    if config.schedule == "cosine":
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * progress))
    return least + (1 - least) * (1 - progress)
