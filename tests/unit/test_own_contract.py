"""What is asked of a model and a task of the user's own: before a job, without memory; in the smoke test."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor, nn

from trainpkg import contract, named
from trainpkg.config import Run
from trainpkg.data import Splits
from trainpkg.data.samples import MapStyle
from trainpkg.errors import UserError
from trainpkg.tasks.own import Own

CPU = torch.device("cpu")


class Task:
    """[squares, samples]; `leaves_out`: what is not real."""

    best_metric = "loss"
    best_mode: Literal["min", "max"] = "min"
    num_sums = 2

    def __init__(self, leaves_out: bool = True, mean: bool = False) -> None:
        self.leaves_out, self.mean = leaves_out, mean

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return cast(Tensor, model(batch)).square().mean()

    def sums(self, model: nn.Module, batch: Tensor, is_real: Tensor) -> Tensor:
        squares = model(batch).square().sum(1) * (is_real if self.leaves_out else 1)
        return torch.stack([squares.sum() / (is_real.sum() if self.mean else 1), is_real.sum()])

    def metrics(self, sums: Tensor, facts: dict[str, float]) -> dict[str, float]:
        return {"loss": (sums[0] / sums[1]).item()}


def judged(**how: bool) -> None:
    samples = MapStyle([torch.ones(2)] * 3)
    strategy: Any = SimpleNamespace(module=nn.Linear(2, 1), autocast=contextlib.nullcontext)
    contract.judge(Own("a:b", Task(**how)), strategy, Splits(samples, samples, "", {}), CPU)


@pytest.mark.parametrize("how", [{"leaves_out": False}, {"mean": True}])
def test_samples_that_are_not_real_have_no_part_in_any_sum(how: dict[str, bool]) -> None:
    judged()
    with pytest.raises(UserError, match=r"where is_real is set for 0 of 2 samples.*wanted is 0 in each"):
        judged(**how)


BUILT: list[bool] = []  # whether on the meta device


class Net(nn.Module):
    def __init__(self, asks: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        if asks:
            self.first = self.head.weight[0, 0].item()
        BUILT.append(self.head.weight.is_meta)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.head(inputs))


@pytest.mark.parametrize("asks", [False, True])
def test_the_contract_builds_a_model_in_memory_only_where_it_asks_for_values(asks: bool) -> None:
    BUILT.clear()
    tree = {"run": "a", "recipe": "r", "task": "images", "train": {"max_steps": 1, "global_batch": 2}}
    tree |= {"model": {"name": f"{__name__}:Net", "kwargs": {"asks": asks}}, "data": {"name": "digits"}}
    (told,) = contract.problems_of(Run.model_validate(tree))
    assert (
        "does not go through model and task" in told and "Give the model the sizes of the data (model.kwargs)" in told
    )
    assert [not asks] == BUILT


def test_code_that_a_package_hands_on_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "handed_on"
    package.mkdir()
    (package / "__init__.py").write_text("from handed_on.net import Net\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for body in ("pass", "...  # other code"):
        (package / "net.py").write_text(f"class Net:\n    {body}\n")
        named.load("model.name", "handed_on:Net")
        found.append(named.digest(["handed_on:Net", "torch.nn:Linear", "math:sqrt"]))
    assert len(set(found)) == 2
