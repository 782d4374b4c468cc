"""The python side of a training: how far it is. Saved in every checkpoint as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class TrainState:
    """`samples` and `tokens` are global and count from step 0; `time_s` is the loop's wall time, over all attempts.

    The data position is `samples`: the order of samples is a function of it. `best` and `last_eval` are
    {step, value | metrics}.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    time_s: float = 0.0
    train_time_s: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    last_eval: dict[str, Any] = field(default_factory=dict)
    last_loss: float | None = None
    evaluation_due: bool = False  # of this very step, given up for a stop

    def advance(self, num_samples: int, tokens_per_sample: int | None) -> None:
        """One optimizer step over `num_samples` global samples is done."""
        self.step += 1
        self.samples += num_samples
        self.tokens += num_samples * (tokens_per_sample or 0)

    def evaluated(self, metrics: dict[str, float], metric: str, mode: str) -> None:
        """Keep the newest evaluation, and the best by `metric`; NaN is never best, the earlier of two equals is."""
        self.evaluation_due = False
        self.last_eval = {"step": self.step, "metrics": metrics}
        value, best = metrics[metric], self.best.get("value")
        better = best is None or (value > best if mode == "max" else value < best)
        if not math.isnan(value) and better:
            self.best = {"metric": metric, "mode": mode, "value": value, "step": self.step}


class RunningLoss:
    """Sum of losses over this rank's samples since the last record. Stays on the device, so adding costs no sync."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.count = 0.0

    def add(self, mean: Tensor, num_samples: float) -> None:
        """`num_samples`: a part of each, where ranks share them."""
        self.total += mean.detach().double() * num_samples
        self.count += num_samples

    def reset(self) -> None:
        self.total.zero_()
        self.count = 0.0

    def as_dict(self) -> dict[str, float]:
        return {"total": self.total.item(), "count": self.count}

    def load(self, saved: dict[str, float]) -> None:
        self.total.fill_(saved["total"])
        self.count = float(saved["count"])
