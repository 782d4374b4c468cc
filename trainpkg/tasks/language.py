"""Next-byte prediction: cross-entropy in nats per byte; bits per byte and perplexity over the held-out text."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainpkg.data.python_text import IGNORED
from trainpkg.tasks import Columns, exact


class Language:
    best_metric = "loss"
    best_mode: Literal["min", "max"] = "min"
    num_sums = 3

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        text, targets = batch
        return F.cross_entropy(model(text).float().flatten(0, 1), targets.flatten())

    def sums(self, model: nn.Module, batch: tuple[Tensor, Tensor], is_real: Tensor) -> Tensor:
        """[nats, bytes predicted, windows]."""
        text, targets = batch
        counted = (targets != IGNORED) & is_real[:, None]
        losses = F.cross_entropy(
            model(text).float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
        )
        nats = exact(losses).view_as(targets) * counted
        return torch.stack([nats.sum(), counted.sum().double(), is_real.sum().double()])

    def metrics(self, sums: Tensor, facts: dict[str, float]) -> dict[str, float]:
        nats, count, _windows = sums.tolist()
        loss = nats / count
        return {
            "loss": loss,
            "loss_nats_per_byte": loss,
            "bits_per_byte": loss / math.log(2),
            "perplexity": math.exp(min(loss, 700.0)),
            **facts,
            "num_tokens": int(count),
        }

    def tables(self, sums: Tensor) -> dict[str, Columns]:
        return {}
