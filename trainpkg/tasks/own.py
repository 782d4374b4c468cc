"""A task of the user's own, whose word is looked at wherever it is taken: what is not as agreed is named."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from trainpkg.data import Batch
from trainpkg.errors import UserError
from trainpkg.tasks import Columns

METHODS = ("loss", "sums", "metrics")


class Own:
    """`tasks.Task` over an object that may leave out `tables`, and whose sums may have any type."""

    def __init__(self, name: str, task: Any) -> None:
        """UserError for what is missing or of another kind."""
        self._name, self._task = name, task
        missing = [part for part in METHODS if not callable(getattr(task, part, None))]
        missing += [part for part in ("best_metric", "best_mode", "num_sums") if not hasattr(task, part)]
        if missing:
            raise self._wrong(f"{type(task).__name__} has no {', '.join(missing)}; docs/own-model.md has an example")
        self.best_metric: str = task.best_metric
        self.best_mode: Literal["min", "max"] = task.best_mode
        self.num_sums: int = task.num_sums
        if self.best_mode not in ("min", "max"):
            raise self._wrong(f"best_mode = {self.best_mode!r}, wanted is 'min' or 'max'")
        if not isinstance(self.num_sums, int) or self.num_sums < 1:
            raise self._wrong(f"num_sums = {self.num_sums!r}, wanted is how many numbers `sums` gives, at least 1")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        value = self._task.loss(model, batch)
        if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
            raise self._wrong(f"loss gave {shown(value)}, wanted is the mean over the batch: a 0-dim float tensor")
        return value

    def sums(self, model: nn.Module, batch: Batch, is_real: Tensor) -> Tensor:
        value = self._task.sums(model, batch, is_real)
        if not isinstance(value, Tensor) or value.shape != (self.num_sums,):
            raise self._wrong(
                f"sums gave {shown(value)}, wanted is a tensor [{self.num_sums}] (num_sums), its last the number of "
                "samples for which is_real is set"
            )
        return value.double()

    def metrics(self, sums: Tensor, facts: dict[str, float]) -> dict[str, float]:
        found = self._task.metrics(sums, facts)
        if not isinstance(found, dict) or not all(isinstance(v, int | float) for v in found.values()):
            raise self._wrong(f"metrics gave {found!r}, wanted is a dictionary of numbers")
        if self.best_metric not in found:
            raise self._wrong(f"metrics gave {sorted(found)}, without best_metric = {self.best_metric!r}")
        return found

    def tables(self, sums: Tensor) -> dict[str, Columns]:
        return self._task.tables(sums) if hasattr(self._task, "tables") else {}

    def _wrong(self, text: str) -> UserError:
        return UserError(f"task = {self._name!r}: {text}")


def shown(value: Any) -> str:
    """A value as a sentence about it needs it."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return f"{type(value).__name__} {value!r}"[:100]
