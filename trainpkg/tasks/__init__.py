"""What is learned and how it is judged: loss of a batch, sums over an evaluation, metrics and tables from the sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from trainpkg import named
from trainpkg.config import ConvModel, Run, ViTModel
from trainpkg.config.names import is_own
from trainpkg.data import Batch, Splits
from trainpkg.errors import UserError
from trainpkg.runtime.sequence import Pieces

Columns = dict[str, list[int] | list[float | None]]


class Task(Protocol):
    """`best_metric` decides which evaluation was the best one, by `best_mode`."""

    best_metric: str
    best_mode: Literal["min", "max"]
    num_sums: int

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss over the batch, 0-dim fp32."""
        ...

    def sums(self, model: nn.Module, batch: Batch, is_real: Tensor) -> Tensor:
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


def build(run: Run, pieces: Pieces, splits: Splits) -> Task:
    """The task that `task` asks for, on these data, for a model that is given `pieces` of the samples."""
    from trainpkg.tasks.images import Images
    from trainpkg.tasks.language import Language
    from trainpkg.tasks.own import Own
    from trainpkg.tasks.pieces import OnPieces

    kwargs = run.task_kwargs or {}
    if is_own(run.task):
        return Own(run.task, named.call("task", run.task, named.load("task", run.task), kwargs))
    if run.task == "images":
        count = num_classes(kwargs, splits)
        if isinstance(run.model, ConvModel | ViTModel) and run.model.classes != count:
            raise UserError(
                f"model.classes = {run.model.classes}, but the data have {count}: set model.classes: {count}"
            )
        task: Task = Images(count)
    else:
        task = Language(splits.unit)
    tokens = splits.train.tokens_per_sample if pieces.size > 1 else None
    if tokens is not None and tokens % pieces.size:
        raise UserError(
            f"sequence_parallel = {pieces.size} does not divide the {tokens} tokens of a sample of data.name = "
            f"{run.data.name!r}: pieces are equally long; take rows of another length, or another sequence_parallel"
        )
    return OnPieces(task, pieces) if pieces.size > 1 else task


def num_classes(kwargs: Mapping[str, Any], splits: Splits) -> int:
    """Of the data, or, where they do not say, of task_kwargs. UserError where neither does."""
    given = kwargs.get("num_classes", splits.num_classes)
    unknown = kwargs.keys() - {"num_classes"}
    if unknown or not isinstance(given, int) or given < 2:
        raise UserError(
            f"task_kwargs = {dict(kwargs)}: task = 'images' takes num_classes, a whole number from 2 on; these data "
            f"say {splits.num_classes}. Give the training data an attribute `num_classes`, or say it in task_kwargs"
        )
    return given
