"""What is learned and how it is judged: loss of a batch, sums over an evaluation, metrics from the sums."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor, nn

from trainpkg.config import Run
from trainpkg.runtime.sequence import Pieces


class Task(Protocol):
    """`best_metric` decides which evaluation was the best one, by `best_mode`."""

    best_metric: str
    best_mode: Literal["min", "max"]
    num_sums: int

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean loss over the batch, 0-dim fp32."""
        ...

    def sums(self, model: nn.Module, batch: tuple[Tensor, Tensor], is_real: Tensor) -> Tensor:
        """Float64 [num_sums] over the samples with `is_real` (bool [N]) set; sums of passes and ranks add up.

        The last sum is the number of samples.
        """
        ...

    def metrics(self, sums: list[float], facts: dict[str, float]) -> dict[str, float]:
        """Metrics of a whole evaluation."""
        ...


def build(run: Run, pieces: Pieces) -> Task:
    """The task that `task` asks for, for a model that is given `pieces` of the samples."""
    from trainpkg.tasks.images import Images
    from trainpkg.tasks.language import Language
    from trainpkg.tasks.pieces import OnPieces

    task: Task = Images() if run.task == "images" else Language()
    return OnPieces(task, pieces) if pieces.size > 1 else task
