"""Which checkpoints stay, told from the directories alone; how the tensors of a checkpoint are shared out."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.test_runtime import context
from trainpkg.config import Checkpoint
from trainpkg.runtime import manifest
from trainpkg.runtime.checkpoints import retention, tensors
from trainpkg.runtime.checkpoints.retention import STATE, step_name, step_of
from trainpkg.runtime.checkpoints.shelf import Shelf


def save(folder: Path, step: int, value: float | None, mode: str = "max", **keys: Any) -> None:
    """The checkpoint of a step, by a process that has just started; `value` None: not evaluated at this step."""
    waiting = folder / f".tmp-{step_name(step)}"
    waiting.mkdir(parents=True)
    evaluation = {"step": step - (value is None), "metrics": {"accuracy": value or 0.5, "loss": 1.0}}
    best = {"metric": "accuracy", "mode": mode, "value": 0.5, "step": 1}
    (waiting / STATE).write_text(json.dumps({"step": step, "last_eval": evaluation, "best": best}))
    publish(Shelf(context(), folder, Checkpoint(**keys)), waiting, step)


def publish(shelf: Shelf, waiting: Path, step: int) -> None:
    what = shelf.publication(waiting, step, manifest.describe(waiting, [STATE]))
    retention.publish(retention.Publication(**json.loads(json.dumps(asdict(what)))), {})  # as it goes to a process


def there(folder: Path) -> list[int]:
    return sorted(step_of(path.name) for path in folder.glob("step-*"))


def test_newest_best_and_every_nth_stay(tmp_path: Path) -> None:
    for step, value in enumerate([0.1, 0.9, 0.2, 0.8, None, 0.9, math.nan, 0.3, 0.85], 1):
        save(tmp_path, step, value, keep_last=1, keep_best=2, keep_every_steps=4)
    assert there(tmp_path) == [2, 4, 6, 8, 9], "of equal ones the earlier is better; 4 and 8 are every fourth"
    assert (tmp_path / "best").read_text() == "step-00000002\n"
    assert (tmp_path / "latest").read_text() == "step-00000009\n"
    save(tmp_path, 10, 0.95, keep_last=1, keep_best=2)
    assert there(tmp_path) == [2, 10] and (tmp_path / "best").read_text() == "step-00000010\n"
    save(tmp_path, 11, 0.1, keep_last=1)
    assert there(tmp_path) == [11] and not (tmp_path / "best").exists(), "nothing is kept for being best any more"


def test_the_least_is_best_where_the_metric_says_so(tmp_path: Path) -> None:
    for step, value in enumerate([0.3, 0.1, 0.2], 1):
        save(tmp_path, step, value, mode="min", keep_last=1, keep_best=1)
    assert there(tmp_path) == [2, 3]


@pytest.mark.parametrize("keep", [{"keep_best": 1}, {"keep_every_steps": 1}, {}])
def test_a_damaged_one_is_kept_for_nothing(tmp_path: Path, keep: dict[str, int]) -> None:
    for step in (1, 2):
        save(tmp_path, step, 1.0 - step / 10, keep_last=3)
    shelf = Shelf(context(), tmp_path, Checkpoint(keep_last=2, **keep))
    shelf.damaged = {step_name(2)}
    waiting = tmp_path / ".tmp-3"
    waiting.mkdir()
    (waiting / STATE).write_text("{}")
    publish(shelf, waiting, 3)
    assert there(tmp_path) == [1, 3]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_every_tensor_is_saved_by_one_rank_and_each_saves_as_much(world_size: int) -> None:
    parts = {f"model.{i}": torch.zeros(100 + i) for i in range(40)} | {"step": torch.zeros(())}
    shares = [tensors.share(parts, rank, world_size) for rank in range(world_size)]
    assert sorted(name for share in shares for name in share) == sorted(parts)
    sizes = [sum(tensor.numel() for tensor in share.values()) for share in shares]
    assert max(sizes) - min(sizes) <= 140
