"""What is learned and how it is judged: loss of a batch, sums over an evaluation, metrics and tables from the sums."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor, nn

from trainpkg.config import Run
from trainpkg.runtime.sequence import Pieces

Columns = dict[str, list[int] | list[float | None]]


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

        The last sum is the number of samples. What is no count is made `exact` first.
        """
        ...

    def metrics(self, sums: Tensor, facts: dict[str, float]) -> dict[str, float]:
        """Metrics of a whole evaluation, a few numbers; `sums` on the CPU."""
        ...

    def tables(self, sums: Tensor) -> dict[str, Columns]:
        """What is more than a few numbers: name -> columns of equal length, each a Parquet file beside the result."""
        ...


def exact(losses: Tensor) -> Tensor:
    """Losses as float64, to the nearest 2**-24 (what float32 resolves at 1): their sums up to 2**29 are not rounded.

    So they come out the same in whatever order, on any number of ranks.
    """
    return (losses.double() * 2**24).round() / 2**24


def build(run: Run, pieces: Pieces) -> Task:
    """The task that `task` asks for, for a model that is given `pieces` of the samples."""
    from trainpkg.models.conv import NUM_CLASSES
    from trainpkg.tasks.images import Images
    from trainpkg.tasks.language import Language
    from trainpkg.tasks.pieces import OnPieces

    task: Task = Images(NUM_CLASSES) if run.task == "images" else Language()
    return OnPieces(task, pieces) if pieces.size > 1 else task
