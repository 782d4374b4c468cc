"""Rows of CSV or Parquet files, as tensors in memory: inputs [N, columns] float32, one target per row."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trainpkg.config import Run, TableData
from trainpkg.data import AbsentError, Splits, digest_of, to_device
from trainpkg.data.samples import held_out_by_number
from trainpkg.errors import UserError
from trainpkg.mistakes import nearest

if TYPE_CHECKING:
    import pandas as pd


KINDS = "biuf"  # of numpy's types: numbers


class Rows:
    """Inputs and targets by row."""

    draws = False
    tokens_per_sample: int | None = None

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets
        self.num_samples = len(targets)

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        places = to_device(indices, self.inputs.device)
        return self.inputs[places], self.targets[places]


def load(run: Run, device: torch.device) -> Splits:
    """UserError for files and columns that are missing, cells that are empty, and inputs that are no numbers."""
    import pandas as pd

    config = run.data
    assert isinstance(config, TableData)
    table = read("data.path", config.path)
    chosen = columns(table, config)
    require_cells("data.path", config.path, table, [*chosen, config.target])
    if config.validation is not None:
        held = read("data.validation", config.validation)
        require_cells("data.validation", config.validation, held, [*chosen, config.target])
        odd = [name for name in chosen if held[name].dtype.kind not in KINDS]
        if odd:
            raise UserError(
                f"data.validation = {config.validation!r}: {odd} hold numbers in data.path, and others here"
            )
        train_rows, held_rows = torch.arange(len(table)), torch.arange(len(table), len(table) + len(held))
        table = pd.concat([table, held], ignore_index=True)
    else:
        train_rows, held_rows = held_out_by_number(len(table), config.validation_fraction)
    if not len(train_rows) or not len(held_rows):
        raise UserError(f"data.path = {config.path!r}: {len(table)} rows are too few to hold any out")
    inputs = torch.from_numpy(table[chosen].to_numpy(np.float64, copy=True))
    targets, num_classes = targets_of(table, config)
    digest = digest_of(inputs, targets, train_rows)
    if config.standardise:
        mean, deviation = inputs[train_rows].mean(0), inputs[train_rows].std(0, unbiased=False)
        inputs = (inputs - mean) / torch.where(deviation > 0, deviation, 1.0)
    inputs = inputs.float()
    train, held_out = (Rows(inputs[rows].to(device), targets[rows].to(device)) for rows in (train_rows, held_rows))
    return Splits(train, held_out, digest, {}, num_classes=num_classes)


def read(key: str, pattern: str) -> pd.DataFrame:
    """All files of a pattern, one below the other."""
    import pandas as pd

    found = sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207  keeps patterns as they are
    if not found:
        raise AbsentError(f"{key} = {pattern!r}: there is no such file in {Path.cwd()}")
    tables = []
    for path in found:
        try:
            tables.append(pd.read_csv(path) if path.endswith((".csv", ".csv.gz")) else pd.read_parquet(path))
        except (OSError, ValueError) as error:
            raise UserError(f"{key}: {path} cannot be read as CSV (.csv) or Parquet: {error}") from error
    if any(list(one.columns) != list(tables[0].columns) for one in tables):
        raise UserError(f"{key} = {pattern!r}: the files have different columns")
    return pd.concat(tables, ignore_index=True)


def columns(table: pd.DataFrame, config: TableData) -> list[str]:
    """The names of the inputs, as the training rows have them."""
    names = [str(name) for name in table.columns]
    for key, wanted in (("data.target", (config.target,)), ("data.inputs", config.inputs)):
        for name in wanted:
            if name not in names:
                raise UserError(f"{key}: there is no column {name!r} in {config.path}{nearest(name, names, 'column')}")
    chosen = list(config.inputs) or [
        name for name in names if name != config.target and table[name].dtype.kind in KINDS
    ]
    odd = [name for name in chosen if table[name].dtype.kind not in KINDS]
    if odd or not chosen:
        raise UserError(f"data.inputs: {odd or 'no column'} of {config.path} is made of numbers; have {names}")
    return chosen


def require_cells(key: str, pattern: str, table: pd.DataFrame, wanted: list[str]) -> None:
    """UserError for columns that are not there, or not full."""
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        near = nearest(missing[0], map(str, table.columns), "column")
        raise UserError(f"{key} = {pattern!r}: there is no column {missing[0]!r}, which data.path has{near}")
    empty = [name for name in wanted if table[name].isna().any()]
    if empty:
        raise UserError(f"{key} = {pattern!r}: there are empty cells in {empty}; fill them or leave the rows out")


def targets_of(table: pd.DataFrame, config: TableData) -> tuple[Tensor, int | None]:
    """Classes as int64, numbered in order where they are text, and how many; or float32 and None."""
    column = table[config.target]
    if column.dtype.kind == "f":
        return torch.from_numpy(column.to_numpy(np.float32, copy=True)), None
    if column.dtype.kind in "iu":
        if column.min() < 0:
            raise UserError(f"data.target = {config.target!r}: whole numbers are classes, and {column.min()} is none")
        return torch.from_numpy(column.to_numpy(np.int64, copy=True)), int(column.max()) + 1
    values = sorted(column.astype(str).unique())
    places = {value: place for place, value in enumerate(values)}
    return torch.tensor([places[value] for value in column.astype(str)]), len(values)
