"""Features x strategies: each cell on 2 and on 4 ranks against one process with the same global batch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.many import Cell, outcome, run_cells
from tests.distributed.start import records

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(1800)]

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
STRATEGIES: dict[str, Cell] = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp"},
    "hsdp": {"strategy": "hsdp"},
}
# name: (what it sets, largest difference of a weight after 6 steps at a learning rate of 3e-3)
FEATURES: dict[str, tuple[Cell, float]] = {
    "plain": ({}, 1e-4),
    "gradient accumulation": ({"train__accumulation": 3}, 1e-4),
    "reduced once per step": ({"train__accumulation": 3, "fsdp__reduce_every_microbatch": False}, 1e-4),
    "weights kept gathered": ({"fsdp__reshard_after_forward": False}, 1e-4),
    "batch that ranks do not divide": ({"train__global_batch": 23, "train__accumulation": 2}, 1e-4),
    "clipping": ({"optim__clip_norm": 0.05}, 1e-4),
    "no clipping": ({"optim__clip_norm": None}, 1e-4),
    "averaged weights": ({"ema__decay": 0.7, "ema__every_steps": 2}, 1e-4),
    "bf16": ({"train__precision": "bf16"}, 1e-2),
    "fp16 with gradient scaler": ({"train__precision": "fp16"}, 1e-2),
    "activation checkpointing": ({"train__activation_checkpointing": True}, 1e-4),
    "compilation by block": ({"train__compile": True}, 1e-4),
    "both": ({"train__compile": True, "train__activation_checkpointing": True}, 1e-4),
    "sgd": ({"optim__name": "sgd", "optim__lr": 0.1}, 1e-4),
    "muon": ({"optim__name": "muon"}, 1e-3),
    "linear warm-up and wsd": ({"optim__schedule": "wsd", "optim__lr_scaling": "sqrt", "optim__base_batch": 12}, 1e-4),
    "skipping NaN": ({"train__nonfinite": "skip"}, 1e-4),
    "gradient norms of blocks": ({"logging__layers": True}, 1e-4),
    "shared sequences": ({"sequence_parallel": 2}, 1e-4),
    "shared sequences, accumulated, both": (
        {
            "sequence_parallel": 2,
            "train__accumulation": 3,
            "train__compile": True,
            "train__activation_checkpointing": True,
        },
        1e-4,
    ),
    "shared sequences in fp16": ({"sequence_parallel": 2, "train__precision": "fp16"}, 1e-2),
    "unused parameters": ({"ddp__find_unused_parameters": True}, 1e-4),
    "offload to the host": ({"fsdp__cpu_offload": True, "launch__device": "cpu"}, 1e-4),
}
COMMON: Cell = {"train__max_steps": 6, "logging__eval_every_steps": 6, "checkpoint__every_steps": 100}
# As much as possible at once, for resuming
ALL: Cell = {
    "model__dropout": 0.2,
    "train__accumulation": 2,
    "train__global_batch": 23,
    "ema__decay": 0.9,
    "train__activation_checkpointing": True,
    "logging__every_steps": 3,
    "logging__eval_every_steps": 4,
    "train__max_steps": 9,
}
RESUMED: dict[str, Cell] = {
    "gpt": ALL,
    "gpt-fp16": ALL | {"train__precision": "fp16", "optim__name": "sgd"},
    "gpt-muon": ALL | {"optim__name": "muon"},
    "gpt-shared": ALL | {"sequence_parallel": 2},
    "digits": ALL | {"base": "digits", "data__shift": 1},
}


def cells_of(strategy: Cell) -> dict[str, Cell]:
    found = {name: COMMON | feature | strategy for name, (feature, _) in FEATURES.items()}
    for name, cell in RESUMED.items():
        for interrupted in (False, True):
            found[f"{name} {'resumed' if interrupted else 'whole'}"] = cell | strategy | {"interrupted": interrupted}
    return {name.replace(" ", "-"): cell for name, cell in found.items()}


EVERY = tuple(f"{strategy}-{num_ranks}" for num_ranks in (2, 4) for strategy in STRATEGIES)
# Two ranks are a core each; of four ranks the strategy that needs them, with what a mesh of two dimensions can change.
FEW = ("ddp-2", "fsdp-2", "hsdp-4")
FEW_OF = {
    "hsdp-4": (
        "plain", "reduced-once-per-step", "batch-that-ranks-do-not-divide", "clipping", "fp16-with-gradient-scaler",
        "shared-sequences", "shared-sequences-in-fp16", "gpt-shared-whole", "gpt-shared-resumed",
    )
}  # fmt: skip


@pytest.fixture(scope="module", params=[FEW, pytest.param(EVERY, marks=pytest.mark.long)], ids=["few", "every"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of all cells: `single`, `ddp-2`, `hsdp-4`, ..."""
    places = {"single": tmp_path_factory.mktemp("single")}
    run_cells(cells_of({"strategy": "single"}), places["single"], 1)
    for place in request.param:
        places[place] = tmp_path_factory.mktemp(place)
        cells = cells_of(STRATEGIES[place.partition("-")[0]])
        if request.param is FEW and place in FEW_OF:
            cells = {name: cells[name] for name in FEW_OF[place]}
        run_cells(cells, places[place], ranks_of(place), [ranks_of(place) // 2] * 2)
    return places


def was_trained(folder: Path, name: str) -> bool:
    """Whether the cell is one of those that were chosen for these ranks."""
    return name in json.loads((folder / "cells.json").read_text())


def ranks_of(place: str) -> int:
    return int(place.partition("-")[2] or 1)


def too_few_ranks(cell: Cell, num_ranks: int) -> bool:
    """Whether sequences would be shared by more ranks than one of two nodes has."""
    return cell.get("sequence_parallel", 1) > max(num_ranks // 2, 1)


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys() and one
    return max((one[name] - other[name]).abs().max().item() for name in one)


def test_every_feature_with_every_strategy_equals_one_process(table: dict[str, Path]) -> None:
    rows, wrong = [], []
    for feature, (cell, tolerance) in FEATURES.items():
        row = [feature, f"{tolerance:g}"]
        name = feature.replace(" ", "-")
        for strategy in STRATEGIES:
            said = set()
            for place in (f"{strategy}-{num_ranks}" for num_ranks in (2, 4)):
                if place not in table or too_few_ranks(cell, ranks_of(place)) or not was_trained(table[place], name):
                    continue
                weights, averages, refused = outcome(table[place], name)
                if refused is not None:
                    said.add("refused")
                    continue
                reference, reference_averages, _ = outcome(table["single"], name)
                if not reference:  # one process refuses what is meant for several
                    reference, reference_averages, _ = outcome(table["single"], "plain")
                far = max(difference(weights, reference), difference(averages, reference_averages))
                said.add("equal" if far <= tolerance else "different")
                if far > tolerance:
                    wrong.append(f"{feature}, {place}: {far:.2g} > {tolerance:g}")
            row.append(" / ".join(sorted(said)))
        rows.append(row)
    assert not wrong, "\n".join(wrong)
    if os.environ.get("TRAINPKG_WRITE") and set(EVERY) <= set(table):
        PAGE.write_text(page(rows))
    written = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    for row, its in zip(rows, written[2:], strict=True):
        assert [cell or its[index] for index, cell in enumerate(row)] == its, f"TRAINPKG_WRITE=1 {Path(__file__).name}"


def page(rows: list[list[str]]) -> str:
    """docs/features.md."""
    head = ["feature", "tolerance", *STRATEGIES]
    lines = [
        "# Features and strategies",
        "",
        "Written by tests/distributed/test_features.py, which trains each cell on 2 and on 4 ranks (gloo, CPU), and",
        "compares all weights, averaged ones too, with those of one process after 6 steps with the same global batch.",
        "`equal`: no weight differs by more than the tolerance; `refused`: the config is refused with the reason.",
        "",
        *("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)),
        "",
    ]
    return "\n".join(lines)


def test_what_is_refused_says_why(table: dict[str, Path]) -> None:
    _, _, offload = outcome(table["fsdp-2"], "offload-to-the-host")
    assert offload is not None and "fsdp.cpu_offload = True with launch.device = 'cpu'" in offload
    _, _, unused = outcome(table["fsdp-2"], "unused-parameters")
    assert unused is not None and "only DistributedDataParallel searches" in unused


@pytest.mark.parametrize("name", RESUMED)
def test_interrupted_equals_uninterrupted_bit_for_bit(table: dict[str, Path], name: str) -> None:
    for place, folder in table.items():
        if too_few_ranks(RESUMED[name], ranks_of(place)) or not was_trained(folder, f"{name}-whole"):
            continue
        whole, resumed = (outcome(folder, f"{name}-{which}") for which in ("whole", "resumed"))
        assert whole[2] is None and resumed[2] is None, (place, whole[2], resumed[2])
        for one, other in zip(whole[:2], resumed[:2], strict=True):
            assert [key for key in one if not torch.equal(one[key], other[key])] == [], place
        assert records(folder / f"{name}-whole") == records(folder / f"{name}-resumed"), place


def test_records_are_those_of_one_process(table: dict[str, Any]) -> None:
    single = records(table["single"] / "batch-that-ranks-do-not-divide")
    for place in FEW:
        other = records(table[place] / "batch-that-ranks-do-not-divide")
        for one, two in zip(single, other, strict=True):
            assert (one["step"], one["samples"]) == (two["step"], two["samples"])
            if one["kind"] == "train":
                assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
                assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
