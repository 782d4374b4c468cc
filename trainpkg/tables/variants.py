"""Which config keys tell the runs of a recipe apart, and which runs differ in their seed alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trainpkg.tables.columns import config_columns


def varied(runs: pd.DataFrame) -> list[str]:
    """Config keys, without the seed, that have more than one value among these runs."""
    return [name for name in config_columns(runs) if name != "seed" and runs[name].nunique(dropna=False) > 1]


@dataclass(frozen=True)
class Variants:
    """The runs table; `codes` are equal for runs of a recipe that differ in their seed alone."""

    runs: pd.DataFrame
    codes: NDArray[np.int64]

    def text(self, code: int) -> str:
        """Such as `lr=0.01, width=32`: what tells a variant from the others of its recipe."""
        row = self.runs.iloc[int(np.flatnonzero(self.codes == code)[0])]
        keys = varied(self.runs[self.runs["recipe"] == row["recipe"]])
        leaves = [key.rpartition(".")[2] for key in keys]
        names = [leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(keys, leaves, strict=True)]
        parts = [f"{name}={shown(row[key])}" for key, name in zip(keys, names, strict=True) if pd.notna(row[key])]
        return ", ".join(parts) or str(row["recipe"])


def variants(runs: pd.DataFrame) -> Variants:
    """The variants of all recipes."""
    if runs.empty:
        return Variants(runs, np.empty(0, dtype=np.int64))
    groups = runs.groupby(["recipe", *varied(runs)], dropna=False, sort=False)
    return Variants(runs, np.asarray(groups.ngroup(), dtype=np.int64))


def shown(value: Any) -> str:
    """A config value for reading: a real number with at most four digits."""
    if isinstance(value, float):
        return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e6 else f"{value:.4g}"
    return str(value)
