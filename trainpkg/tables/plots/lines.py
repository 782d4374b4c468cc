"""One panel of curves per recipe: few as lines with their names, seeds as bands, many as their quantiles and extremes.

Values of different tasks cannot be compared, so recipes never share a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainpkg.tables.plots import canvas
from trainpkg.tables.plots.canvas import COLOURS, DASHES, MAX_LINES, End
from trainpkg.tables.plots.series import Curve, scaled, spread

# Pale enough to lie under lines, dark enough for a poor printer.
BAND = "#BFDDEE"
GOOD, BAD = COLOURS[2], COLOURS[1]
NOTHING = "no finished records yet"
Units = Sequence[tuple[float, float, str]]
"""From which value on to divide by how much, and what that is called; the largest first."""


@dataclass(frozen=True)
class Panel:
    """What one recipe shows. `rank` orders curves for the extremes, whose words are (of the lowest, of the highest)."""

    curves: Sequence[Curve]
    x_label: str
    y_label: str
    rank: Callable[[Curve], float]
    words: tuple[str, str] = ("lowest", "highest")
    high_is_good: bool = False
    units: Units = ()
    from_zero: bool = False


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
    largest = max(float(curve.x.max()) for curve in panel.curves)
    factor, unit = next(((by, word) for least, by, word in panel.units if largest >= least), (1.0, ""))
    curves = [scaled(curve, factor) for curve in panel.curves]
    ax.set(xlabel=f"{panel.x_label} ({unit})" if unit else panel.x_label, ylabel=panel.y_label)
    low, high = min(float(curve.y.min()) for curve in curves), max(float(curve.y.max()) for curve in curves)
    if panel.from_zero:
        ax.set_ylim(0, 1.08 * high)
    elif 0 < 10 * low < high:
        canvas.plain_log(ax, low, high)
    if len(curves) <= MAX_LINES:
        return _lines(ax, curves), ""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.variant, []).append(curve)
    if len(groups) <= MAX_LINES:
        return _bands(
            ax, groups
        ), "Bands: from the lowest to the highest of runs that differ in their seed alone; lines: their median."
    return _quantiles(ax, curves, panel), (
        f"Of more than {MAX_LINES} runs: the median and the middle 80 %, as far as half of them got, and the extremes."
    )


def _plot(ax: Axes, curve: Curve, colour: str, dash: object, width: float) -> End:
    # A single record is no line.
    marker = "o" if len(curve.x) == 1 else ""
    ax.plot(curve.x, curve.y, color=colour, linestyle=dash, linewidth=width, marker=marker, markersize=3)
    if curve.mark is not None:
        ax.plot(*curve.mark, "D", color=colour, markersize=4, markeredgecolor="white", markeredgewidth=0.5, zorder=3)
    return End(float(curve.x[-1]), float(curve.y[-1]), curve.label, colour, dash)


def _lines(ax: Axes, curves: Sequence[Curve]) -> list[End]:
    return [_plot(ax, curve, COLOURS[index], DASHES[index % len(DASHES)], 1.4) for index, curve in enumerate(curves)]


def _bands(ax: Axes, groups: Mapping[str, Sequence[Curve]]) -> list[End]:
    """Per group of seeds the median and the whole range."""
    ends = []
    for index, (variant, curves) in enumerate(groups.items()):
        colour, dash = COLOURS[index], DASHES[index % len(DASHES)]
        its = spread(curves, 0, 1)
        ax.fill_between(its.x, its.low, its.high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(its.x, its.median, color=colour, linestyle=dash)
        text = f"{variant} ({counted(len(curves), 'seed')})"
        ends.append(End(float(its.x[-1]), float(its.median[-1]), text, colour, dash))
    return ends


def _quantiles(ax: Axes, curves: Sequence[Curve], panel: Panel) -> list[End]:
    its = spread(curves, 0.1, 0.9)
    ax.fill_between(its.x, its.low, its.high, color=BAND, linewidth=0)
    ax.plot(its.x, its.median, color=COLOURS[0], linewidth=1.8)
    at = float(its.x[-1])
    ends = [
        End(at, float(its.median[-1]), f"median of {len(curves)}", COLOURS[0]),
        End(at, float(its.high[-1]), "90 % are below", BAND),
        End(at, float(its.low[-1]), "10 % are below", BAND),
    ]
    # A run that died early has a high loss for that reason alone.
    candidates = [curve for curve in curves if curve.finished] or curves
    ranks = np.array([panel.rank(curve) for curve in candidates])
    looks = ((GOOD, DASHES[1]), (BAD, DASHES[2]))
    for word, index, look in zip(
        panel.words,
        (int(ranks.argmin()), int(ranks.argmax())),
        looks[::-1] if panel.high_is_good else looks,
        strict=True,
    ):
        colour, dash = look
        end = _plot(ax, candidates[index], colour, dash, 1.0)
        ends.append(End(end.x, end.y, f"{word}: {end.text}", colour, dash))
    return ends
