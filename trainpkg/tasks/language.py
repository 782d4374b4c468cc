"""Prediction of the next byte or token: cross-entropy in nats; bits per byte and perplexity over the held-out text."""

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

    def __init__(self, unit: str = "byte") -> None:
        """`unit`: what a target is, `byte` or `token`."""
        self._unit = unit

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        text, targets = batch
        return F.cross_entropy(model(text).float().flatten(0, 1), targets.flatten())

    def sums(self, model: nn.Module, batch: tuple[Tensor, Tensor], is_real: Tensor) -> Tensor:
        """[nats, targets, windows]."""
        text, targets = batch
        counted = (targets != IGNORED) & is_real[:, None]
        losses = F.cross_entropy(
            model(text).float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
        )
        nats = exact(losses).view_as(targets) * counted
        return torch.stack([nats.sum(), counted.sum().double(), is_real.sum().double()])

    def metrics(self, sums: Tensor, facts: dict[str, float]) -> dict[str, float]:
        """bits_per_byte of tokens: where the data say how many bytes one has (`bytes_per_token`)."""
        nats, count, _windows = sums.tolist()
        loss = nats / count
        num_bytes = 1.0 if self._unit == "byte" else facts.get("bytes_per_token")
        return {
            "loss": loss,
            f"loss_nats_per_{self._unit}": loss,
            **({"bits_per_byte": loss / num_bytes / math.log(2)} if num_bytes else {}),
            "perplexity": math.exp(min(loss, 700.0)),
            **facts,
            "num_tokens": int(count),
        }

    def tables(self, sums: Tensor) -> dict[str, Columns]:
        return {}
