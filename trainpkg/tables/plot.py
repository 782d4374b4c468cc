"""Plots of the tables: loss over steps, loss over time, throughput over world size. One panel per recipe.

Losses of different tasks cannot be compared, so recipes never share a panel. Up to eight runs are lines with their
names beside them; more become their median, the range of the middle 80 percent, and the extremes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from trainpkg.tables import canvas
from trainpkg.tables.canvas import COLOURS, DASHES, FAINT, INK, MAX_LINES, End

# Pale enough to lie under lines, dark enough for a poor printer.
BAND = "#BFDDEE"
IDEAL_DASH = (0, (1, 2))
NOTHING = "no finished records yet"
GRID_POINTS = 200
TIME_UNITS = ((3600.0 * 3, 3600.0, "hours"), (60.0 * 5, 60.0, "minutes"), (0.0, 1.0, "seconds"))
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """The finite part of one run's loss."""

    name: str
    x: Array
    y: Array
    finished: bool


def plots(runs: pd.DataFrame, steps: pd.DataFrame) -> dict[str, bytes]:
    """File name -> SVG, from the runs and steps tables."""
    with canvas.style():
        return {name: canvas.svg(figure) for name, figure in figures(runs, steps).items()}


def figures(runs: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Figure]:
    """File name -> figure; to be called within `canvas.style()`."""
    return {
        "loss_over_steps.svg": _loss(runs, steps, "step", "Training loss over steps"),
        "loss_over_time.svg": _loss(runs, steps, "time_s", "Training loss over time"),
        "throughput_over_world_size.svg": _throughput(runs),
    }


def _loss(runs: pd.DataFrame, steps: pd.DataFrame, over: str, heading: str) -> Figure:
    curves = _curves(runs, steps, over)
    if not curves:
        return canvas.empty(heading, NOTHING, "optimizer step" if over == "step" else "training time", "training loss")
    titles = [f"{recipe} ({len(its)} run{'' if len(its) == 1 else 's'})" for recipe, its in curves.items()]
    explanation = "Each record is the mean loss over all ranks since the record before it."
    if any(len(its) > MAX_LINES for its in curves.values()):
        explanation += "\nOf more than 8 runs: the median and the middle 80 %, as far as half of them got."
    figure, axes = canvas.panels(heading, explanation, titles)
    ends = []
    for ax, its in zip(axes, curves.values(), strict=True):
        label, factor = "optimizer step", 1.0
        if over == "time_s":
            longest = max(curve.x.max() for curve in its)
            factor, unit = next((size, name) for least, size, name in TIME_UNITS if longest >= least)
            label = f"training time ({unit})"
        ax.set(xlabel=label, ylabel="training loss")
        low, high = min(curve.y.min() for curve in its), max(curve.y.max() for curve in its)
        if 0 < 10 * low < high:
            canvas.plain_log(ax, low, high)
        scaled = [replace(curve, x=curve.x / factor) for curve in its]
        ends.append(_lines(ax, scaled) if len(scaled) <= MAX_LINES else _aggregate(ax, scaled))
    canvas.arrange(figure, ends)
    return figure


def _curves(runs: pd.DataFrame, steps: pd.DataFrame, over: str) -> dict[str, list[Curve]]:
    """Per recipe, in the order of the runs table, the runs that have a finite loss."""
    x, y = steps[over].to_numpy(dtype=np.float64, na_value=np.nan), steps["loss"].to_numpy(dtype=np.float64)
    found: dict[str, list[Curve]] = {}
    where = steps.groupby("run", sort=False).indices
    for run, recipe, status in zip(runs["run"], runs["recipe"], runs["status"], strict=True):
        rows = where.get(run, np.empty(0, dtype=np.int64))
        finite = np.isfinite(x[rows]) & np.isfinite(y[rows])
        if not finite.any():
            continue
        name = str(run) if status == "finished" else f"{run} ({status})"
        if not finite.all():
            name += " (not finite)"
        found.setdefault(str(recipe), []).append(Curve(name, x[rows][finite], y[rows][finite], status == "finished"))
    return found


def _lines(ax: Axes, curves: Sequence[Curve]) -> list[End]:
    ends = []
    for index, curve in enumerate(curves):
        colour, dash = COLOURS[index], DASHES[index % len(DASHES)]
        # A single record is no line.
        ax.plot(curve.x, curve.y, color=colour, linestyle=dash, marker="o" if len(curve.x) == 1 else "", markersize=3)
        ends.append(End(curve.x[-1], curve.y[-1], curve.name, colour, dash))
    return ends


def _aggregate(ax: Axes, curves: Sequence[Curve]) -> list[End]:
    """Median and middle 80 percent at each step over the runs that have got there, and the runs that end extreme."""
    grid = np.linspace(min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves), GRID_POINTS)
    values = np.full((len(curves), len(grid)), np.nan)
    for index, curve in enumerate(curves):
        # Time may go back where attempts overlap; interpolation needs it in order.
        order = np.argsort(curve.x, kind="stable")
        values[index] = np.interp(grid, curve.x[order], curve.y[order], left=np.nan, right=np.nan)
    # What few runs have got to says nothing about all of them.
    counts = np.isfinite(values).sum(axis=0)
    enough = counts >= min(len(curves) / 2, counts.max())
    low, median, high = np.nanpercentile(values[:, enough], (10, 50, 90), axis=0)
    x = grid[enough]
    ax.fill_between(x, low, high, color=BAND, linewidth=0)
    ax.plot(x, median, color=COLOURS[0], linewidth=1.8)
    ends = [
        End(x[-1], median[-1], f"median of {len(curves)}", COLOURS[0]),
        End(x[-1], high[-1], "90 % are below", BAND),
        End(x[-1], low[-1], "10 % are below", BAND),
    ]
    # A run that died early has a high loss for that reason alone.
    candidates = [curve for curve in curves if curve.finished] or curves
    by_end = sorted(candidates, key=lambda curve: (curve.y[-1], curve.name))
    for word, curve, colour, dash in (
        ("lowest", by_end[0], COLOURS[2], DASHES[1]),
        ("highest", by_end[-1], COLOURS[1], DASHES[2]),
    ):
        ax.plot(curve.x, curve.y, color=colour, linewidth=1, linestyle=dash)
        ends.append(End(curve.x[-1], curve.y[-1], f"{word}: {curve.name}", colour, dash))
    return ends


def _throughput(runs: pd.DataFrame) -> Figure:
    heading = "Throughput over world size"
    known = runs[runs["samples_per_second"].gt(0) & runs["world_size"].gt(0).fillna(False)]
    if known.empty:
        return canvas.empty(heading, NOTHING, "ranks", "samples per second")
    explanation = (
        "Points: runs. Lines: medians of comparable runs, and the percent of the ideal that the last one reaches.\n"
        "n/rank, n/step: compared at equal samples per rank (weak scaling) or per step over all ranks (strong)."
    )
    recipes = list(known["recipe"].drop_duplicates())
    figure, axes = canvas.panels(heading, explanation, recipes)
    ends = []
    for ax, recipe in zip(axes, recipes, strict=True):
        its = known[known["recipe"] == recipe]
        ax.set(xlabel="ranks", ylabel="samples per second")
        sizes = sorted(int(size) for size in its["world_size"].unique())
        _world_size_axis(ax, sizes)
        canvas.plain_log(ax, its["samples_per_second"].min(), its["samples_per_second"].max())
        if its["scaling_kind"].isna().all():
            why = "one world size: nothing to compare" if len(sizes) == 1 else "no two runs are comparable"
            ax.text(0.03, 0.04, why, transform=ax.transAxes, color="#555555")
        series = its.groupby(["scaling_series", "scaling_kind"], sort=False, dropna=False)
        ends.append(_series(ax, dict(iter(series))))
    canvas.arrange(figure, ends)
    return figure


def _world_size_axis(ax: Axes, sizes: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    # At most a dozen labels fit beside each other.
    shown = list(sizes[:1])
    for size in sizes[1:]:
        if size / shown[-1] >= (sizes[-1] / sizes[0]) ** (1 / 12):
            shown.append(size)
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_minor_locator(FixedLocator([]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _series(ax: Axes, series: Mapping[tuple[str, str], pd.DataFrame]) -> list[End]:
    """Points per run; per comparison the line through the medians and, from its smallest world size, the ideal.

    Of more than eight series only the best and the worst at their largest world size are named.
    """
    ends: list[End] = []
    few = len(series) <= MAX_LINES
    ideal: list[End] = []
    top = ax.get_ylim()[1]
    for index, ((name, kind), part) in enumerate(series.items()):
        colour, dash = (COLOURS[index], DASHES[index % len(DASHES)]) if few else (FAINT, "solid")
        sizes, speeds = part["world_size"].astype(float), part["samples_per_second"]
        ax.plot(sizes, speeds, "o", color=colour, markersize=3.5, alpha=0.6, markeredgewidth=0)
        medians = part.groupby("world_size")["samples_per_second"].median()
        x, y = medians.index.to_numpy(dtype=np.float64), medians.to_numpy()
        text = "" if pd.isna(name) else str(name)
        if pd.isna(kind):
            text = text or (str(part["run"].iloc[0]) if len(part) == 1 else f"{len(part)} runs")
            dash = None
        else:
            ax.plot(x, y, color=colour, linestyle=dash)
            perfect = y[0] * x / x[0]
            ax.plot(x, perfect, color=INK, linewidth=0.8, linestyle=IDEAL_DASH)
            ideal.append(End(x[-1], perfect[-1], "ideal", INK, IDEAL_DASH))
            top = max(top, 1.2 * perfect[-1])
            text = f"{text}: {100 * y[-1] / perfect[-1]:.0f} %"
        ends.append(End(x[-1], y[-1], text, colour, dash))
    ax.set_ylim(top=top)
    if not few:
        ends = sorted(ends, key=lambda end: (end.y, end.text))
        ends = ends[:1] + ends[-1:]
    return ends + ideal[:1]
