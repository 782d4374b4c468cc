"""The curves of runs, from tables with one row per record, and what many curves come to. Draws nothing.

A sheet of 27,270 runs has millions of records: curves stay in two long arrays, and only those that are drawn are taken
out one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from trainpkg.tables.variants import Variants

GRID_POINTS = 120
LAST = 3
LARGEST = 1e30  # beyond it a number is damage, or a loss that has long diverged
Array = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """The finite part of one run's values."""

    label: str
    x: Array
    y: Array


@dataclass(frozen=True)
class Curves:
    """The curves of a recipe: that of run i is x[starts[i]:stops[i]], one after the other, each with a finite value."""

    runs: NDArray[Any]
    statuses: NDArray[Any]
    cut: NDArray[np.bool_]
    """Whether values that are not finite were left out."""
    variants: NDArray[np.int64]
    """Equal for runs that differ in their seed alone."""
    x: Array
    y: Array
    starts: Rows
    stops: Rows

    def __len__(self) -> int:
        return len(self.runs)

    def curve(self, index: int) -> Curve:
        rows = slice(self.starts[index], self.stops[index])
        status = "" if self.statuses[index] == "finished" else f" ({self.statuses[index]})"
        note = " (not finite)" if self.cut[index] else ""
        return Curve(f"{self.runs[index]}{status}{note}", self.x[rows], self.y[rows])

    def ends(self) -> Array:
        """What each curve comes to: the mean of its last three values, since one is noise."""
        last = [self.y[np.maximum(self.stops - back, self.starts)] for back in range(1, LAST + 1)]
        return np.asarray(np.mean(last, axis=0))

    def means(self) -> Array:
        """The mean of each curve."""
        return np.asarray(np.add.reduceat(self.y, self.starts) / (self.stops - self.starts))

    def scaled(self, factor: float) -> Curves:
        """The same with x in another unit."""
        return self if factor == 1 else replace(self, x=self.x / factor)

    def take(self, indices: Rows) -> Curves:
        """These curves in this order."""
        rows, starts, stops = _gathered(self.starts[indices], self.stops[indices])
        names = (self.runs[indices], self.statuses[indices], self.cut[indices], self.variants[indices])
        return Curves(*names, self.x[rows], self.y[rows], starts, stops)


@dataclass(frozen=True)
class Spread:
    """Quantiles of many curves at the points `x`, each over the curves that reach that point."""

    x: Array
    low: Array
    median: Array
    high: Array


def numbers(column: pd.Series[float] | pa.ChunkedArray) -> Array:
    """A column as float64, with NaN for gaps and for what no axis can hold."""
    if isinstance(column, pa.ChunkedArray):
        values = column.to_numpy()
    else:
        values = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def blocks(owners: pd.Series[Any], runs: pd.DataFrame) -> tuple[Rows, Rows]:
    """First row and end of each run's rows in a table, in the order of `runs`; those of a run stand together.

    `owners`: the table's column of runs.
    """
    codes, names = pd.factorize(owners)
    edges = np.flatnonzero(np.diff(codes, prepend=-1, append=-2))
    places = pd.Index(runs["run"].astype(object)).get_indexer(pd.Index(names[codes[edges[:-1]]]).astype(object))
    starts, stops = np.zeros(len(runs), dtype=np.int64), np.zeros(len(runs), dtype=np.int64)
    known = places >= 0
    starts[places[known]], stops[places[known]] = edges[:-1][known], edges[1:][known]
    return starts, stops


def curves(runs: pd.DataFrame, where: tuple[Rows, Rows], x: Array, y: Array, variants: Variants) -> dict[str, Curves]:
    """Per recipe, in the order of the runs table, the runs that have a finite value."""
    starts, stops = where
    finite = np.isfinite(x) & np.isfinite(y)
    cut = np.zeros(len(runs), dtype=bool)
    if not finite.all():
        before = np.concatenate([[0], np.cumsum(finite)])
        kept = before[stops] - before[starts]
        cut = kept < stops - starts
        starts, stops, x, y = before[starts], before[starts] + kept, x[finite], y[finite]
    found = {}
    codes, recipes = pd.factorize(runs["recipe"])
    names, statuses = runs["run"].to_numpy(dtype=object), runs["status"].to_numpy(dtype=object)
    for code, recipe in enumerate(recipes):
        its = np.flatnonzero((codes == code) & (stops > starts))
        if len(its):
            rows, first, end = _gathered(starts[its], stops[its])
            about = (names[its], statuses[its], cut[its], variants.codes[its])
            found[str(recipe)] = Curves(*about, x[rows], y[rows], first, end)
    return found


def _gathered(starts: Rows, stops: Rows) -> tuple[slice | Rows, Rows, Rows]:
    """The rows of some blocks, and where these are once they stand one after the other."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    if (starts[1:] == stops[:-1]).all():
        return slice(int(starts[0]), int(stops[-1])), ends - lengths, ends
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1]), ends - lengths, ends


def on_one_grid(curves: Curves) -> tuple[Array, Array]:
    """Points x, and the value of every curve there (curves, points): NaN before its first and after its last record."""
    length = int(curves.stops[0] - curves.starts[0])
    if len(curves.x) == length * len(curves) and (curves.stops - curves.starts == length).all():
        all_x = curves.x.reshape(-1, length)
        if (all_x == all_x[0]).all() and (np.diff(all_x[0]) > 0).all():
            chosen = np.unique(np.linspace(0, length - 1, min(length, GRID_POINTS)).round().astype(int))
            return all_x[0][chosen], curves.y.reshape(-1, length)[:, chosen]
    grid = np.linspace(curves.x.min(), curves.x.max(), GRID_POINTS)
    values = np.empty((len(curves), len(grid)))
    # Time goes back where attempts overlap or a clock was set; interpolation needs it in order.
    back = np.diff(curves.x, prepend=curves.x[:1]) < 0
    back[curves.starts] = False
    unordered = np.add.reduceat(back, curves.starts, dtype=np.int64) > 0
    for index, (start, stop) in enumerate(zip(curves.starts.tolist(), curves.stops.tolist(), strict=True)):
        x, y = curves.x[start:stop], curves.y[start:stop]
        if unordered[index]:
            order = np.argsort(x, kind="stable")
            x, y = x[order], y[order]
        values[index] = np.interp(grid, x, y, left=np.nan, right=np.nan)
    return grid, values


def spread(curves: Curves, shares: Sequence[float]) -> Spread:
    """Two quantiles (0 to 1) and the median between, as far as half of the curves get: few say nothing of all."""
    grid, values = on_one_grid(curves)
    # NaN is sorted behind all numbers, so that each column begins with its finite values in order.
    values = np.sort(values.T, axis=1)
    counts = np.isfinite(values).sum(axis=1)
    enough = counts >= min(len(curves) / 2, counts.max())
    values, counts = values[enough], counts[enough]
    low, high = shares
    return Spread(grid[enough], *(_quantile(values, counts, share) for share in (low, 0.5, high)))


def _quantile(ordered: Array, counts: Rows, share: float) -> Array:
    """The quantile of the first `counts` values of each row, between neighbours in proportion (numpy's default)."""
    place = share * (counts - 1)
    below = np.floor(place).astype(int)
    above = np.minimum(below + 1, counts - 1)
    lines = np.arange(len(ordered))
    lower, upper = ordered[lines, below], ordered[lines, above]
    return np.asarray(lower + (place - below) * (upper - lower))
