"""Scaling efficiency of a small sheet, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_tree import NOW_S, Tree, expected, record, row

from trainpkg.tables.files.collect import Expected
from trainpkg.tables.summarise import summarise


def measured(tree: Tree, run: str, ranks: int, speed: float, recipe: str = "digits", **config: Any) -> Expected:
    one = expected(run, recipe, **config)
    tree.finished(one, [record(10, 1.0, samples_per_second=1.0), record(20, 1.0, samples_per_second=speed)], ranks)
    return one


def test_scaling_by_hand(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    sheet = [
        # Weak: 32 samples per rank. Base: median of 90 and 110 samples/s on one rank = 100.
        measured(tree, "one", 1, 90.0, train__global_batch=32),
        measured(tree, "one-seed", 1, 110.0, train__global_batch=32, seed=1),
        measured(tree, "two", 2, 180.0, train__global_batch=64, optim__lr=0.002),
        measured(tree, "four", 4, 300.0, train__global_batch=128, launch__nodes=2),
        # Strong: no other run has 16 per rank, but "two" has 64 per step, with 90 samples/s per rank.
        measured(tree, "strong", 4, 270.0, train__global_batch=64),
        # Another model, strategy, precision of work or recipe: nothing to compare with.
        measured(tree, "wide", 2, 50.0, train__global_batch=64, model__width=64),
        measured(tree, "sharded", 2, 170.0, train__global_batch=64, strategy="fsdp"),
        measured(tree, "other", 2, 170.0, recipe="gpt", train__global_batch=64),
    ]
    runs = summarise(tmp_path, sheet, NOW_S).runs
    found = {
        its["run"]: (its["scaling_kind"], its["scaling_base_world_size"], its["scaling_efficiency_percent"])
        for its in (row(runs, one.run) for one in sheet)
    }
    nothing = (None, None, None)
    assert found == {
        "one": ("weak", 1, 90.0), "one-seed": ("weak", 1, pytest.approx(110.0)), "two": ("weak", 1, 90.0),
        "four": ("weak", 1, 75.0), "strong": ("strong", 2, 75.0),
        "wide": nothing, "sharded": nothing, "other": nothing,
    }  # fmt: skip
    assert row(runs, "four")["scaling_series"] == "ddp, width=32, 32/rank"
