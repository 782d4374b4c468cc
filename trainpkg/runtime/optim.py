"""The optimizer and its learning-rate schedule, a function of the step: there is no state of it to save."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainpkg.config import Optim


def build(config: Optim, module: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW; weight decay on matrices only (biases, norms and other vectors keep their scale)."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


def learning_rate(config: Optim, step: int, max_steps: int) -> float:
    """Learning rate of the optimizer step that follows `step` done ones: linear warm-up, then cosine or constant."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    progress = (step - config.warmup_steps) / max(max_steps - config.warmup_steps, 1)
    least = config.lr * config.min_lr_ratio
    return least + (config.lr - least) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
