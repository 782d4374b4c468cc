"""Throughput over the number of ranks, beside what perfect scaling would give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from trainpkg.tables.plots import canvas
from trainpkg.tables.plots.canvas import COLOURS, DASHES, INK, MAX_LINES, End
from trainpkg.tables.plots.lines import BAD, BAND, GOOD, NOTHING, counted
from trainpkg.tables.plots.series import LARGEST, Array, numbers

IDEAL_DASH = (0, (1, 2))
MAX_POINTS = 200


def throughput_over_world_size(runs: pd.DataFrame) -> Figure:
    heading = "Throughput over world size"
    possible = runs["samples_per_second"].between(0, LARGEST, inclusive="neither")
    known = runs[possible & runs["world_size"].gt(0).fillna(False)]
    if known.empty:
        return canvas.empty(heading, NOTHING, "ranks", "samples per second")
    explanation = (
        "Points: runs. Lines: medians of comparable runs, and the percent of the ideal that the last one reaches.\n"
        "n/rank, n/step: compared at equal samples per rank (weak scaling) or per step over all ranks (strong)."
    )
    recipes, left_out = canvas.most({str(recipe): len(its) for recipe, its in known.groupby("recipe", sort=False)})
    titles = [f"{recipe} ({counted((known['recipe'] == recipe).sum(), 'run')})" for recipe in recipes]
    figure, axes = canvas.panels(heading, "\n".join(filter(None, [explanation, left_out])), titles)
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
        ends.append(_series(ax, [part for _, part in series]) if series.ngroups <= MAX_LINES else _many(ax, its))
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


def _series(ax: Axes, series: Sequence[pd.DataFrame]) -> list[End]:
    """Points per run; per comparison the line through the medians and, from its smallest world size, the ideal."""
    ends: list[End] = []
    top = ax.get_ylim()[1]
    ideal: list[End] = []
    for index, part in enumerate(series):
        name, kind = part["scaling_series"].iloc[0], part["scaling_kind"].iloc[0]
        colour, dash = COLOURS[index], DASHES[index % len(DASHES)]
        x, y = _medians(part)
        if len(part) <= MAX_POINTS:
            sizes, speeds = part["world_size"].astype(float), part["samples_per_second"]
            ax.plot(sizes, speeds, "o", color=colour, markersize=3.5, alpha=0.6, markeredgewidth=0)
        else:
            ax.plot(x, y, "o", color=colour, markersize=3.5, markeredgewidth=0)
        text = "" if pd.isna(name) else str(name)
        if pd.isna(kind):
            text = text or (str(part["run"].iloc[0]) if len(part) == 1 else f"{len(part)} runs")
            ends.append(End(x[-1], y[-1], text, colour, None))
            continue
        perfect = y[0] * x / x[0]
        ax.plot(x, y, color=colour, linestyle=dash)
        ax.plot(x, perfect, color=INK, linewidth=0.8, linestyle=IDEAL_DASH)
        ideal.append(End(x[-1], perfect[-1], "ideal", INK, IDEAL_DASH))
        top = max(top, 1.2 * perfect[-1])
        ends.append(End(x[-1], y[-1], f"{text}: {100 * y[-1] / perfect[-1]:.0f} %", colour, dash))
    ax.set_ylim(top=top)
    return ends + ideal[:1]


def _many(ax: Axes, its: pd.DataFrame) -> list[End]:
    """Of more comparisons than can be told apart: quantiles at each world size, and who scales best and worst."""
    quantiles = its.groupby("world_size")["samples_per_second"].quantile(np.array([0.1, 0.5, 0.9])).unstack()
    x = quantiles.index.to_numpy(dtype=np.float64)
    low, middle, high = quantiles.to_numpy().T
    ax.vlines(x, low, high, color=BAND, linewidth=6)
    ax.plot(x, middle, "_", color=COLOURS[0], markersize=12, markeredgewidth=1.8)
    ends = [
        End(x[-1], middle[-1], f"median of {len(its)} runs", COLOURS[0]),
        End(x[-1], high[-1], "90 % are below", BAND),
        End(x[-1], low[-1], "10 % are below", BAND),
    ]
    scaled = its[its["scaling_efficiency_percent"].notna() & (its["world_size"] > its["scaling_base_world_size"])]
    if not scaled.empty:
        order = scaled.sort_values("scaling_efficiency_percent", kind="stable")["scaling_series"]
        for word, name, colour, dash in (
            ("best", order.iloc[-1], GOOD, DASHES[1]), ("worst", order.iloc[0], BAD, DASHES[2]),
        ):  # fmt: skip
            sizes, speeds = _medians(its[its["scaling_series"] == name])
            ax.plot(sizes, speeds, color=colour, linestyle=dash, linewidth=1)
            percent = 100 * speeds[-1] / (speeds[0] * sizes[-1] / sizes[0])
            ends.append(End(sizes[-1], speeds[-1], f"{word}: {name}, {percent:.0f} %", colour, dash))
    return ends


def _medians(part: pd.DataFrame) -> tuple[Array, Array]:
    medians = part.groupby("world_size")["samples_per_second"].median()
    return medians.index.to_numpy(dtype=np.float64), numbers(medians)
