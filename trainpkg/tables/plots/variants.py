"""Which config keys tell the runs of a recipe apart, and which runs differ in their seed alone."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from trainpkg.tables.columns import config_columns


def varied(runs: pd.DataFrame) -> list[str]:
    """Config keys, without the seed, that have more than one value among these runs."""
    return [name for name in config_columns(runs) if name != "seed" and runs[name].nunique(dropna=False) > 1]


def variants(runs: pd.DataFrame) -> dict[str, str]:
    """Run -> a text such as `lr=0.01, width=32`, equal for runs of a recipe that differ in their seed alone."""
    found: dict[str, str] = {}
    for recipe, its in runs.groupby("recipe", sort=False):
        keys = varied(its)
        if not keys:
            found.update(dict.fromkeys(its["run"], str(recipe)))
            continue
        leaves = [key.rpartition(".")[2] for key in keys]
        names = [leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(keys, leaves, strict=True)]
        columns = [its[key].map({value: f"{name}={shown(value)}" for value in its[key].dropna().unique()}).fillna("")
                   for key, name in zip(keys, names, strict=True)]  # fmt: skip
        for run, *parts in zip(its["run"], *columns, strict=True):
            found[run] = ", ".join(filter(None, parts))
    return found


def shown(value: Any) -> str:
    """A config value for reading: a real number with at most four digits."""
    if isinstance(value, float):
        return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e6 else f"{value:.4g}"
    return str(value)
