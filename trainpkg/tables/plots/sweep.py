"""What a config key that varies does to the metric that a recipe is judged by: one panel per recipe and key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from trainpkg.tables.plots import canvas
from trainpkg.tables.plots.canvas import COLOURS, MAX_PANELS, End
from trainpkg.tables.plots.learning import better, judged_by
from trainpkg.tables.plots.lines import BAD, BAND, GOOD
from trainpkg.tables.plots.series import Array, numbers
from trainpkg.tables.variants import shown, varied

HEADING = "A parameter against the metric"
# Where runs go, what Slurm gives and how often is saved changes no result.
NO_PARAMETER = ("launch.", "slurm.", "logging.", "checkpoint.", "smoke.", "evaluate.")
MAX_POINTS = 300
MAX_VALUES = 12
NUM_BINS = 16


@dataclass(frozen=True)
class Parameter:
    """A key's place on the x axis for every run, NaN where a run lacks it; `names` are those of text at 0, 1, ..."""

    key: str
    x: Array
    names: tuple[str, ...] | None

    @property
    def is_log(self) -> bool:
        """Whether the values, such as 1, 3, 10, are more even on a logarithmic axis."""
        values = np.unique(self.x[np.isfinite(self.x)])
        if self.names is not None or values[0] <= 0 or values[-1] < 4 * values[0]:
            return False
        low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
        linear, log = (middle - low) / (high - low), math.log(middle / low) / math.log(high / low)
        return bool(abs(log - 0.5) < abs(linear - 0.5))

    def bins(self) -> NDArray[np.int64]:
        """A group for every run: one per value where there are few, else about equally many runs in each."""
        values, group = np.unique(self.x, return_inverse=True)
        if len(values) <= 2 * MAX_VALUES:
            return group
        edges = np.unique(np.nanquantile(self.x, np.linspace(0, 1, NUM_BINS + 1)))
        return np.clip(np.searchsorted(edges, self.x, side="right") - 1, 0, len(edges) - 2)


def sweep(runs: pd.DataFrame) -> Figure:
    """Points for few runs, bands for many; runs that came to no metric stand at the bad edge."""
    judged = judged_by(runs)
    # The largest recipes are enough for a page.
    recipes, _ = canvas.most({recipe: int((runs["recipe"] == recipe).sum()) for recipe in judged})
    chosen = []
    for recipe in recipes:
        metric, mode = judged[recipe]
        its = runs[(runs["recipe"] == recipe) & (runs["status"] != "absent")]
        named = its["best_metric_name"].eq(metric).fillna(False).to_numpy(bool)
        y = np.where(named, numbers(its["best_metric"]), np.nan)
        found = [parameter for key in varied(its) if (parameter := _parameter(its[key], y)) is not None]
        found.sort(key=lambda parameter: (-_explained(parameter, y), parameter.key))
        chosen += [(recipe, metric, mode, its, y, one) for one in found[: max(2, MAX_PANELS // len(recipes))]]
    if not chosen:
        return canvas.empty(HEADING, "no config key varies between evaluated runs", "value", "metric")
    left_out = len(chosen) - MAX_PANELS
    chosen = chosen[:MAX_PANELS]
    figure, axes = canvas.panels(HEADING, "", [f"{recipe}: {one.key}" for recipe, *_, one in chosen])
    sentences = ["The metric by which the recipe chooses its best checkpoint. Keys that explain more of it come first."]
    if any(np.isfinite(y).sum() > MAX_POINTS for *_, y, _ in chosen):
        sentences.append(f"Of more than {MAX_POINTS} runs: the median and the middle 80 % at each value, and the best.")
    if left_out > 0:
        sentences.append(f"{left_out} more panels would follow; all values are in runs.csv.")
    canvas.explain(figure, sentences)
    ends = []
    for ax, (_, metric, mode, its, y, parameter) in zip(axes, chosen, strict=True):
        ax.set(xlabel=parameter.key, ylabel=f"{metric} ({better(mode)} is better)")
        ends.append(_panel(ax, parameter, y, list(its["run"]), mode))
    canvas.arrange(figure, ends)
    return figure


def _parameter(values: pd.Series[Any], y: Array) -> Parameter | None:
    """None for what is no parameter, for text with too many values, and where all runs with a metric agree."""
    key = str(values.name)
    if key.startswith(NO_PARAMETER) or not np.isfinite(y).any():
        return None
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        its: Parameter = Parameter(key, numbers(values), None)
    else:
        texts = values.astype(object).where(values.notna(), "not set").map(shown)
        names = tuple(sorted(set(texts)))
        if len(names) > MAX_VALUES:
            return None
        its = Parameter(key, texts.map({name: index for index, name in enumerate(names)}).to_numpy(np.float64), names)
    return its if len(np.unique(its.x[np.isfinite(its.x) & np.isfinite(y)])) > 1 else None


def _explained(parameter: Parameter, y: Array) -> float:
    """The share of the variance of the metric's ranks between the groups: it orders panels and proves nothing."""
    known = np.isfinite(y) & np.isfinite(parameter.x)
    ranks = pd.Series(y[known]).rank().to_numpy()
    groups = pd.Series(ranks).groupby(parameter.bins()[known]).transform("mean").to_numpy()
    return float(groups.var() / ranks.var()) if ranks.var() > 0 else 0.0


def _panel(ax: Axes, parameter: Parameter, y: Array, runs: Sequence[str], mode: str) -> list[End]:
    known = np.isfinite(y) & np.isfinite(parameter.x)
    low, high = float(y[known].min()), float(y[known].max())
    if 0 < 10 * low < high:
        canvas.plain_log(ax, low, high)
    else:
        pad = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
        ax.set_ylim(low - pad, high + pad)
    _x_axis(ax, parameter)
    best = int(np.nanargmin(np.where(known, y, np.nan)) if mode == "min" else np.nanargmax(np.where(known, y, np.nan)))
    many = known.sum() > MAX_POINTS
    ends = _bands(ax, parameter, y, known, mode) if many else _points(ax, parameter, y, known)
    ax.plot(parameter.x[best], y[best], "*", color=GOOD, markersize=9, markeredgecolor="white", markeredgewidth=0.5)
    ends.append(End(parameter.x[best], y[best], f"best: {runs[best]}, {y[best]:.4g}", GOOD, None, "*"))
    without = np.isnan(y) & np.isfinite(parameter.x)
    if without.any():
        edge = ax.get_ylim()[1 if mode == "min" else 0]
        places = _apart(ax, parameter.x[without])
        ax.plot(places, np.full(len(places), edge), "x", color=BAD, markersize=5, clip_on=False)
        ends.append(End(float(parameter.x[without].max()), edge, f"{without.sum()} without a metric", BAD, None, "x"))
    return ends


def _apart(ax: Axes, values: Array) -> Array:
    """Of values that would be drawn on top of each other, one."""
    places = ax.transData.transform(np.column_stack([values, np.full(len(values), ax.get_ylim()[0])]))[:, 0]
    _, first = np.unique((places / 2).round(), return_index=True)
    return values[first]


def _x_axis(ax: Axes, parameter: Parameter) -> None:
    known = parameter.x[np.isfinite(parameter.x)]
    if parameter.names is not None:
        ax.set_xlim(-0.6, len(parameter.names) - 0.4)
        length = max(3, 44 // len(parameter.names))
        ax.set_xticks(range(len(parameter.names)), [canvas.shortened(name, length) for name in parameter.names])
        return
    values = np.unique(known)
    if parameter.is_log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(canvas.PLAIN)
        pad = (values[-1] / values[0]) ** 0.06
        ax.set_xlim(values[0] / pad, values[-1] * pad)
        ax.xaxis.set_minor_locator(NullLocator())
        if len(values) > 7:
            return
    else:
        pad = 0.06 * (values[-1] - values[0])
        ax.set_xlim(values[0] - pad, values[-1] + pad)
    if len(values) <= 7:
        ax.set_xticks(values, [shown(float(value)) for value in values])


def _points(ax: Axes, parameter: Parameter, y: Array, known: NDArray[np.bool_]) -> list[End]:
    """All runs, and the median where several share a value."""
    x = parameter.x.copy()
    if parameter.names is not None:
        # Side by side, so that equal values do not hide each other; by order, not by chance.
        x += 0.25 * (np.arange(len(x)) % 7 - 3) / 3
    ax.plot(x[known], y[known], "o", color=COLOURS[0], alpha=0.6, markersize=4, markeredgewidth=0)
    values, counts = np.unique(parameter.x[known], return_counts=True)
    if counts.max() < 2 or len(values) > 2 * MAX_VALUES:
        return []
    medians = np.array([np.median(y[known][parameter.x[known] == value]) for value in values])
    if parameter.names is not None:
        ax.hlines(medians, values - 0.35, values + 0.35, color=COLOURS[0], linewidth=1.4)
    else:
        ax.plot(values, medians, color=COLOURS[0], linewidth=1.2)
    return [End(float(values[-1]), float(medians[-1]), "median", COLOURS[0])]


def _bands(ax: Axes, parameter: Parameter, y: Array, known: NDArray[np.bool_], mode: str) -> list[End]:
    """Quantiles and the best of each value, or of neighbours where there are too many values."""
    group = parameter.bins()[known]
    table = pd.DataFrame({"group": group, "x": parameter.x[known], "y": y[known]}).groupby("group")
    x = table["x"].median().to_numpy()
    low, middle, high = (table["y"].quantile(share).to_numpy() for share in (0.1, 0.5, 0.9))
    top = (table["y"].min() if mode == "min" else table["y"].max()).to_numpy()
    if parameter.names is not None:
        ax.vlines(x, low, high, color=BAND, linewidth=10)
        ax.hlines(middle, x - 0.3, x + 0.3, color=COLOURS[0], linewidth=1.8)
        ax.plot(x, top, "_", color=GOOD, markersize=12)
    else:
        ax.fill_between(x, low, high, color=BAND, linewidth=0)
        ax.plot(x, middle, color=COLOURS[0], linewidth=1.8)
        ax.plot(x, top, color=GOOD, linestyle=canvas.DASHES[1], linewidth=1)
    bad_end = high if mode == "min" else low
    word = "90 % are below" if mode == "min" else "10 % are below"
    at = float(x[-1])
    return (
        [
            End(at, float(middle[-1]), f"median of {int(known.sum())}", COLOURS[0]),
            End(at, float(bad_end[-1]), word, BAND),
            End(at, float(top[-1]), "best at each value", GOOD, canvas.DASHES[1]),
        ]
        if not math.isnan(at)
        else []
    )
