"""Image classification: cross-entropy; accuracy over the held-out images."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Images:
    best_metric = "accuracy"
    best_mode: Literal["min", "max"] = "max"
    num_sums = 3

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images).float(), labels)

    def sums(self, model: nn.Module, batch: tuple[Tensor, Tensor], is_real: Tensor) -> Tensor:
        """[loss, right answers, images]."""
        images, labels = batch
        logits = model(images).float()
        losses = F.cross_entropy(logits, labels, reduction="none").double()
        right = (logits.argmax(1) == labels).double()
        real = is_real.double()
        return torch.stack([(losses * real).sum(), (right * real).sum(), real.sum()])

    def metrics(self, sums: list[float], facts: dict[str, float]) -> dict[str, float]:
        loss, right, count = sums
        return {"loss": loss / count, "accuracy": right / count}
