"""The curves of runs, from tables with one row per record, and what many curves come to. Draws nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

GRID_POINTS = 120
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """The finite part of one run's values; `variant` is equal for runs that differ in their seed alone."""

    run: str
    label: str
    variant: str
    x: Array
    y: Array
    finished: bool
    mark: tuple[float, float] | None = None
    """A point of its own, such as the exact evaluation after the training."""


@dataclass(frozen=True)
class Spread:
    """Quantiles of many curves at the points `x`, each over the curves that reach that point."""

    x: Array
    low: Array
    median: Array
    high: Array


def blocks(table: pd.DataFrame) -> dict[str, slice]:
    """Where the rows of each run stand; those of one run stand together in every table."""
    codes, names = pd.factorize(table["run"])
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    stops = np.append(starts, len(codes))[1:]
    return {str(names[codes[start]]): slice(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)}


def numbers(column: pd.Series[float]) -> Array:
    """A column as float64, with NaN for gaps."""
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def curves(
    runs: pd.DataFrame, where: Mapping[str, slice], x: Array, y: Array, variants: Mapping[str, str]
) -> dict[str, list[Curve]]:
    """Per recipe, in the order of the runs table, the runs that have a finite value."""
    finite = np.isfinite(x) & np.isfinite(y)
    found: dict[str, list[Curve]] = {}
    nothing = slice(0, 0)
    for run, recipe, status in zip(runs["run"], runs["recipe"], runs["status"], strict=True):
        rows = where.get(run, nothing)
        kept, its_x, its_y = finite[rows], x[rows], y[rows]
        label = run if status == "finished" else f"{run} ({status})"
        if not kept.all():
            its_x, its_y = its_x[kept], its_y[kept]
            label += " (not finite)"
        if len(its_x):
            curve = Curve(run, label, variants.get(run, run), its_x, its_y, status == "finished")
            found.setdefault(str(recipe), []).append(curve)
    return found


def scaled(curve: Curve, factor: float) -> Curve:
    """The curve with x in another unit."""
    mark = None if curve.mark is None else (curve.mark[0] / factor, curve.mark[1])
    return replace(curve, x=curve.x / factor, mark=mark)


def on_one_grid(curves: Sequence[Curve]) -> tuple[Array, Array]:
    """Points x, and the value of every curve there (curves, points): NaN before its first and after its last record."""
    first = curves[0].x
    if all(len(curve.x) == len(first) for curve in curves):
        all_x = np.stack([curve.x for curve in curves])
        if (all_x == first).all() and (np.diff(first) > 0).all():
            chosen = np.unique(np.linspace(0, len(first) - 1, min(len(first), GRID_POINTS)).round().astype(int))
            return first[chosen], np.stack([curve.y for curve in curves])[:, chosen]
    grid = np.linspace(min(curve.x.min() for curve in curves), max(curve.x.max() for curve in curves), GRID_POINTS)
    values = np.empty((len(curves), len(grid)))
    for index, curve in enumerate(curves):
        x, y = curve.x, curve.y
        if (x[1:] < x[:-1]).any():
            # Time goes back where attempts overlap or a clock was set; interpolation needs it in order.
            order = np.argsort(x, kind="stable")
            x, y = x[order], y[order]
        values[index] = np.interp(grid, x, y, left=np.nan, right=np.nan)
    return grid, values


def spread(curves: Sequence[Curve], low: float, high: float) -> Spread:
    """Quantiles `low` and `high` (0 to 1) and the median, as far as half of the curves get: few say nothing of all."""
    grid, values = on_one_grid(curves)
    # NaN is sorted behind all numbers, so that each column begins with its finite values in order.
    values = np.sort(values, axis=0)
    counts = np.isfinite(values).sum(axis=0)
    enough = counts >= min(len(curves) / 2, counts.max())
    values, counts = values[:, enough], counts[enough]
    return Spread(grid[enough], *(_quantile(values, counts, share) for share in (low, 0.5, high)))


def _quantile(ordered: Array, counts: NDArray[np.int64], share: float) -> Array:
    """The quantile of the first `counts` values of each column, between neighbours in proportion (numpy's default)."""
    place = share * (counts - 1)
    below = np.floor(place).astype(int)
    above = np.minimum(below + 1, counts - 1)
    columns = np.arange(ordered.shape[1])
    lower, upper = ordered[below, columns], ordered[above, columns]
    result: Array = lower + (place - below) * (upper - lower)
    return result
