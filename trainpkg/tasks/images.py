"""Image classification: cross-entropy; accuracy over the held-out images, as a whole and class by class."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainpkg.errors import UserError
from trainpkg.tasks import Columns, exact


class Images:
    """One class of `num_classes` per image. All counts follow from the confusion matrix: num_classes squared sums."""

    best_metric = "accuracy"
    best_mode: Literal["min", "max"] = "max"

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.num_sums = num_classes**2 + 3

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self._logits(model, images), labels)

    def sums(self, model: nn.Module, batch: tuple[Tensor, Tensor], is_real: Tensor) -> Tensor:
        """[images by label and predicted class, loss, images whose label is among the first five, images]."""
        images, labels = batch
        logits = self._logits(model, images)
        real = is_real.double()
        confusion = real.new_zeros(self.num_classes**2)
        confusion.index_add_(0, labels * self.num_classes + logits.argmax(1), real)
        loss = exact(F.cross_entropy(logits, labels, reduction="none")) * real
        first = logits.topk(min(5, self.num_classes)).indices
        among = (first == labels[:, None]).any(1) * real
        return torch.cat([confusion, torch.stack([loss.sum(), among.sum(), real.sum()])])

    def metrics(self, sums: Tensor, facts: dict[str, float]) -> dict[str, float]:
        """mean_class_accuracy: over the classes that have images, each with the same weight."""
        confusion = self._confusion(sums)
        loss, among, count = sums[-3:].tolist()
        support, right = confusion.sum(1), confusion.diagonal()
        there = support > 0
        return {
            "loss": loss / count,
            "accuracy": right.sum().item() / count,
            "top5_accuracy": among / count,
            "mean_class_accuracy": (right[there] / support[there]).mean().item(),
        }

    def tables(self, sums: Tensor) -> dict[str, Columns]:
        """confusion: number of images (`count`) of class `label` that were taken for class `predicted`, for all pairs.

        classes: of each `label` the images that have it (`support`), that were taken for it (`predicted`), that are
        both (`right`), and the share of its images that were recognised (`accuracy`, null without any).
        """
        confusion = self._confusion(sums).long()
        classes = torch.arange(self.num_classes)
        support, predicted, right = confusion.sum(1), confusion.sum(0), confusion.diagonal()
        return {
            "confusion": {
                "label": classes.repeat_interleave(self.num_classes).tolist(),
                "predicted": classes.repeat(self.num_classes).tolist(),
                "count": confusion.flatten().tolist(),
            },
            "classes": {
                "label": classes.tolist(),
                "support": support.tolist(),
                "predicted": predicted.tolist(),
                "right": right.tolist(),
                "accuracy": [r / n if n else None for r, n in zip(right.tolist(), support.tolist(), strict=True)],
            },
        }

    def _logits(self, model: nn.Module, images: Tensor) -> Tensor:
        """UserError where they are of other classes: of more, images would count for others, of fewer, not at all."""
        logits: Tensor = model(images).float()
        if logits.shape[1:] != (self.num_classes,):
            raise UserError(
                f"task = 'images': the model gives {list(logits.shape)} for {len(images)} images of {self.num_classes} "
                f"classes, wanted is [{len(images)}, {self.num_classes}]: give the model as many outputs as there are "
                "classes (the data's, or task_kwargs.num_classes)"
            )
        return logits

    def _confusion(self, sums: Tensor) -> Tensor:
        return sums[: self.num_classes**2].view(self.num_classes, self.num_classes)
