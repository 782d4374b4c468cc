"""The most memory that a rank of each run took: who is near the limit of the device."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainpkg.tables.plots import canvas
from trainpkg.tables.plots.canvas import COLOURS, End
from trainpkg.tables.plots.lines import BAND, NOTHING, counted
from trainpkg.tables.plots.series import LARGEST, numbers

MAX_ROWS = 12
MAX_POINTS = 300
HEADING = "Peak memory of a rank"


def memory(runs: pd.DataFrame) -> Figure:
    """A row per run where these are few; else all runs in order of what they took, with the extremes named."""
    known = runs[runs["memory_mb"].between(0, LARGEST, inclusive="neither").fillna(False)]
    if known.empty:
        return canvas.empty(HEADING, NOTHING, "GB", "")
    recipes, left_out = canvas.most({str(recipe): len(its) for recipe, its in known.groupby("recipe", sort=False)})
    parts = [known[known["recipe"] == recipe] for recipe in recipes]
    titles = [f"{recipe} ({counted(len(its), 'run')})" for recipe, its in zip(recipes, parts, strict=True)]
    figure, axes = canvas.panels(HEADING, "", titles)
    on_cpu = (known["device"] == "cpu").any()
    sentence = "On a GPU what torch had allocated" + (
        "; on a CPU the resident memory of the process." if on_cpu else "."
    )
    canvas.explain(figure, [sentence, *filter(None, [left_out])])
    ends = [_rows(ax, its) if len(its) <= MAX_ROWS else _ordered(ax, its) for ax, its in zip(axes, parts, strict=True)]
    names = [run for its in parts if len(its) <= MAX_ROWS for run in its["run"]]
    canvas.arrange(figure, ends, left=canvas.left_of(names))
    return figure


def _rows(ax: Axes, runs: pd.DataFrame) -> list[End]:
    gigabytes = numbers(runs["memory_mb"]) / 1000
    heights = np.arange(len(runs))[::-1]
    canvas.rows(ax, list(runs["run"]))
    ax.hlines(heights, 0, gigabytes, color=BAND, linewidth=3)
    ax.plot(gigabytes, heights, "o", color=COLOURS[0], markersize=5)
    ax.set(xlabel="GB", xlim=(0, 1.1 * gigabytes.max()))
    sizes = runs["world_size"]
    return [
        End(
            float(x),
            float(y),
            f"{x:.3g} GB" + ("" if pd.isna(size) else f", {counted(size, 'rank')}"),
            COLOURS[0],
            bare=True,
        )
        for x, y, size in zip(gigabytes, heights, sizes, strict=True)
    ]


def _ordered(ax: Axes, runs: pd.DataFrame) -> list[End]:
    its = runs.sort_values("memory_mb", kind="stable")
    gigabytes = numbers(its["memory_mb"]) / 1000
    share, drawn = np.linspace(0, 100, MAX_POINTS), np.linspace(0, len(its) - 1, MAX_POINTS).round().astype(int)
    ax.fill_between(share, gigabytes[drawn], color=BAND, linewidth=0)
    ax.plot(share, gigabytes[drawn], color=COLOURS[0])
    ax.set(xlabel="percent of the runs that take less", ylabel="GB", xlim=(0, 100), ylim=(0, 1.1 * gigabytes[-1]))
    middle = float(np.median(gigabytes))
    return [
        End(100, float(gigabytes[-1]), f"highest: {its['run'].iloc[-1]}, {gigabytes[-1]:.3g} GB", COLOURS[1], None),
        End(50, middle, f"half of the runs: {middle:.3g} GB", COLOURS[0], None),
        End(0, float(gigabytes[0]), f"lowest: {its['run'].iloc[0]}, {gigabytes[0]:.3g} GB", COLOURS[2], None),
    ]
