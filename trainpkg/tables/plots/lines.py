"""One panel of curves per recipe: few as lines with their names, seeds as bands, many as their quantiles and extremes.

Values of different tasks cannot be compared, so recipes never share a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainpkg.tables.plots import canvas
from trainpkg.tables.plots.canvas import COLOURS, DASHES, MAX_LINES, End
from trainpkg.tables.plots.series import Array, Curve, Curves, spread
from trainpkg.tables.variants import Variants

# Pale enough to lie under lines, dark enough for a poor printer.
BAND = "#BFDDEE"
GOOD, BAD = COLOURS[2], COLOURS[1]
NOTHING = "no finished records yet"
Units = Sequence[tuple[float, float, str]]
"""From which value on to divide by how much, and what that is called; the largest first."""


@dataclass(frozen=True)
class Panel:
    """What one recipe shows. `rank` orders curves for the extremes, whose words are (of the lowest, of the highest)."""

    curves: Curves
    variants: Variants
    x_label: str
    y_label: str
    rank: Callable[[Curves], Array] = Curves.ends
    words: tuple[str, str] = ("lowest", "highest")
    high_is_good: bool = False
    units: Units = ()
    from_zero: bool = False
    marks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Points beside the line of a run, such as its exact evaluation; shown where runs are lines of their own."""


def figure(heading: str, explanation: str, panels: Mapping[str, Panel], x_label: str, y_label: str) -> Figure:
    """A panel per recipe; without any, an axis with these labels that says so."""
    if not panels:
        return canvas.empty(heading, NOTHING, x_label, y_label)
    chosen, left_out = canvas.most({recipe: len(panel.curves) for recipe, panel in panels.items()})
    titles = [f"{recipe} ({counted(len(panels[recipe].curves), 'run')})" for recipe in chosen]
    made, axes = canvas.panels(heading, "", titles)
    drawn = [_draw(ax, panels[recipe]) for ax, recipe in zip(axes, chosen, strict=True)]
    notes = dict.fromkeys([explanation, *(note for _, note in drawn), left_out])
    canvas.explain(made, [note for note in notes if note])
    canvas.arrange(made, [ends for ends, _ in drawn])
    return made


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _draw(ax: Axes, panel: Panel) -> tuple[list[End], str]:
    """Ends of the lines, and what has to be said of how they came about."""
    largest = float(panel.curves.x.max())
    factor, unit = next(((by, word) for least, by, word in panel.units if largest >= least), (1.0, ""))
    curves = panel.curves.scaled(factor)
    ax.set(xlabel=f"{panel.x_label} ({unit})" if unit else panel.x_label, ylabel=panel.y_label)
    low, high = float(curves.y.min()), float(curves.y.max())
    if panel.from_zero:
        ax.set_ylim(0, 1.08 * high)
    elif 0 < 10 * low < high:
        canvas.plain_log(ax, low, high)
    if len(curves) <= MAX_LINES:
        return _lines(ax, curves, panel.marks), ""
    if len(np.unique(curves.variants)) <= MAX_LINES:
        return _bands(ax, curves, panel.variants), (
            "Bands: from the lowest to the highest of runs that differ in their seed alone; lines: their median."
        )
    return _quantiles(ax, curves, panel), (
        f"Of more than {MAX_LINES} runs: the median and the middle 80 %, as far as half of them got, and the extremes."
    )


def _plot(ax: Axes, curve: Curve, colour: str, dash: object, width: float) -> End:
    # A single record is no line.
    marker = "o" if len(curve.x) == 1 else ""
    ax.plot(curve.x, curve.y, color=colour, linestyle=dash, linewidth=width, marker=marker, markersize=3)
    return End(float(curve.x[-1]), float(curve.y[-1]), curve.label, colour, dash)


def _lines(ax: Axes, curves: Curves, marks: Mapping[str, tuple[float, float]]) -> list[End]:
    ends = []
    for index, run in enumerate(curves.runs):
        colour = COLOURS[index]
        ends.append(_plot(ax, curves.curve(index), colour, DASHES[index % len(DASHES)], 1.4))
        if run in marks:
            edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.5}
            ax.plot(*marks[run], "D", color=colour, markersize=4, zorder=3, **edge)
    return ends


def _bands(ax: Axes, curves: Curves, variants: Variants) -> list[End]:
    """Per group of seeds the median and the whole range."""
    ends = []
    for index, code in enumerate(pd.unique(curves.variants)):
        colour, dash = COLOURS[index], DASHES[index % len(DASHES)]
        group = curves.take(np.flatnonzero(curves.variants == code))
        its = spread(group, (0, 1))
        ax.fill_between(its.x, its.low, its.high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(its.x, its.median, color=colour, linestyle=dash)
        text = f"{variants.text(int(code))} ({counted(len(group), 'seed')})"
        ends.append(End(float(its.x[-1]), float(its.median[-1]), text, colour, dash))
    return ends


def _quantiles(ax: Axes, curves: Curves, panel: Panel) -> list[End]:
    its = spread(curves, (0.1, 0.9))
    ax.fill_between(its.x, its.low, its.high, color=BAND, linewidth=0)
    ax.plot(its.x, its.median, color=COLOURS[0], linewidth=1.8)
    at = float(its.x[-1])
    ends = [
        End(at, float(its.median[-1]), f"median of {len(curves)}", COLOURS[0]),
        End(at, float(its.high[-1]), "90 % are below", BAND),
        End(at, float(its.low[-1]), "10 % are below", BAND),
    ]
    # A run that died early has a high loss for that reason alone.
    finished = np.flatnonzero(curves.statuses == "finished")
    candidates = finished if len(finished) else np.arange(len(curves))
    ranks = panel.rank(curves)[candidates]
    looks = ((GOOD, DASHES[1]), (BAD, DASHES[2]))
    for word, place, (colour, dash) in zip(
        panel.words, (ranks.argmin(), ranks.argmax()), looks[::-1] if panel.high_is_good else looks, strict=True
    ):
        end = _plot(ax, curves.curve(int(candidates[place])), colour, dash, 1.0)
        ends.append(End(end.x, end.y, f"{word}: {end.text}", colour, dash))
    return ends
