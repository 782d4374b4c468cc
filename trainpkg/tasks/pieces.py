"""A task whose sequences are shared by several ranks: each judges its piece, and sums over all ranks are right."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from trainpkg.runtime.sequence import Pieces
from trainpkg.tasks import Task


class OnPieces:
    """`task` for a model that takes this rank's piece of the sequences; batches are whole: inputs and targets [N, T].

    Pieces are equally long, so that the mean over all ranks is the mean over all tokens.
    """

    best_metric: str
    best_mode: Literal["min", "max"]
    num_sums: int

    def __init__(self, task: Task, pieces: Pieces) -> None:
        self._task, self._pieces = task, pieces
        self.best_metric, self.best_mode, self.num_sums = task.best_metric, task.best_mode, task.num_sums
        self.metrics, self.tables = task.metrics, task.tables

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return self._task.loss(model, (self._pieces.own(inputs), self._pieces.own(targets)))

    def sums(self, model: nn.Module, batch: tuple[Tensor, Tensor], is_real: Tensor) -> Tensor:
        """As the task's; a sample is counted by the rank that has its first piece."""
        inputs, targets = batch
        found = self._task.sums(model, (self._pieces.own(inputs), self._pieces.own(targets)), is_real)
        found[-1] *= self._pieces.index == 0
        return found
