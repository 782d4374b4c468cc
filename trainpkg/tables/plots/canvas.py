"""How every plot looks: panels, colours, direct labels, and the same bytes for the same numbers.

Text is drawn as outlines (`svg.fonttype: path`) of the font that comes with matplotlib: labels are placed by their
measured size, which holds in a viewer only if the viewer cannot substitute a font. The words stay in the file as
comments. Geometry is fixed in inches rather than fitted, so that panels align and no label is cut off.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

# Okabe and Ito's colours, told apart under every colour blindness; their yellow, too pale on paper, is a grey here.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
# A second channel for grey prints.
DASHES: tuple[Any, ...] = ("solid", (0, (6, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
INK = "#222222"
MAX_LINES = len(COLOURS)
MAX_LABEL = 34
# More recipes than this are left to the tables: nobody reads a page of thirty panels.
MAX_PANELS = 8
FONT_SIZE = 8
STYLE = {
    "svg.hashsalt": "trainpkg", "svg.fonttype": "path", "font.family": ["DejaVu Sans"], "font.size": FONT_SIZE,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "axes.labelcolor": INK,
    "axes.axisbelow": True,
    # A fixed height: matplotlib would measure all tick labels of a panel to find that none is in the title's way.
    "axes.titley": 1.0,
    "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.grid": True,
    "grid.color": "#E6E6E6", "grid.linewidth": 0.6, "lines.linewidth": 1.4, "xtick.color": INK, "ytick.color": INK,
    "text.color": INK,
}  # fmt: skip

# Inches.
PANEL_WIDTH, PANEL_HEIGHT, LEFT, BOTTOM, ABOVE, HEADING, LINE = 3.7, 2.4, 0.75, 0.55, 0.42, 0.38, 0.15
KEY = 0.25
# Where the sample of a line and its label begin, in widths of the panel.
SAMPLE, LABEL = (1.03, 1.085), 1.1


@dataclass(frozen=True)
class End:
    """Where a line ends (in data), what it is called there and how it is drawn (dash None: as points).

    `bare` is the text alone, for a row whose height already says what it belongs to.
    """

    x: float
    y: float
    text: str
    colour: str
    dash: Any = "solid"
    marker: str = "o"
    bare: bool = False

    @property
    def label(self) -> str:
        return shortened(self.text, 2 * MAX_LABEL if self.bare else MAX_LABEL)


@contextmanager
def style() -> Iterator[None]:
    """Our look, whatever the user's matplotlibrc says."""
    with mpl.style.context(["default", STYLE]):
        yield


def panels(heading: str, explanation: str, titles: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per title; `arrange` puts them in their places once the labels are known."""
    figure = Figure()
    figure.text(0, 0, heading, fontsize=11, weight="bold", va="top")
    figure.text(0, 0, explanation, color="#555555", va="top")
    axes = [figure.add_axes((0, 0, 1, 1), label=str(index)) for index, _ in enumerate(titles)]
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(shortened(title, 60))
        ax.xaxis.set_major_formatter(PLAIN)
        ax.yaxis.set_major_formatter(PLAIN)
    return figure, axes


def arrange(
    figure: Figure,
    ends: Sequence[Sequence[End]],
    width: float = PANEL_WIDTH,
    heights: Sequence[float] | None = None,
    left: float = LEFT,
    key: Sequence[tuple[str, str, str]] = (),
) -> None:
    """Label the ends of each panel's lines, and lay the panels out in one or two columns. Call it last.

    `heights` (inches, one per panel) stacks panels of unlike heights in one column. `key` has a swatch for each
    (word, colour, hatch), below the explanation.
    """
    for index, (ax, its) in enumerate(zip(figure.axes, ends, strict=True)):
        label_ends(ax, its, heights[index] if heights else PANEL_HEIGHT)
    num_columns = 1 if heights or len(ends) == 1 else 2
    edges = [0.0]
    for column in range(num_columns):
        texts = (end.label for its in ends[column::num_columns] for end in its)
        longest = max(map(width_of, texts), default=0.0)
        edges.append(edges[-1] + left + width + (LABEL - 1) * width + longest + 0.2)
    rows = heights or [PANEL_HEIGHT] * -(-len(ends) // num_columns)
    tops = [0.0, *np.cumsum([height + ABOVE + BOTTOM for height in rows])]
    lines = figure.texts[1].get_text().split("\n")
    heading = HEADING + len(lines) * LINE + (KEY if key else 0)
    page_width = max(edges[-1], max(map(width_of, lines)) + 0.3)
    page_height = tops[-1] + heading
    figure.set_size_inches(page_width, page_height)
    for text, below in zip(figure.texts, (0.12, 0.34), strict=True):
        text.set_position((0.12 / page_width, 1 - below / page_height))
    _key(figure, key, page_height - heading + LINE)
    for index, ax in enumerate(figure.axes):
        row, column = divmod(index, num_columns)
        x, y = edges[column] + left, page_height - heading - tops[row] - ABOVE - rows[row]
        ax.set_position((x / page_width, y / page_height, width / page_width, rows[row] / page_height))


def explain(figure: Figure, sentences: Sequence[str]) -> None:
    """The lines below the heading."""
    figure.texts[1].set_text("\n".join(sentences))


def most(sizes: Mapping[str, int]) -> tuple[list[str], str]:
    """The names that get a panel, in their order, the largest ones where there are too many; and what to say then."""
    if len(sizes) <= MAX_PANELS:
        return list(sizes), ""
    kept = set(sorted(sizes, key=lambda name: -sizes[name])[:MAX_PANELS])
    return [
        name for name in sizes if name in kept
    ], f"{len(sizes) - MAX_PANELS} more recipes, of fewer runs, are in the tables."


@lru_cache(maxsize=4096)  # most labels stand in several plots
def width_of(text: str) -> float:
    """Width in inches of text in our font and size."""
    font = FontProperties(family="DejaVu Sans", size=FONT_SIZE)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def _key(figure: Figure, entries: Sequence[tuple[str, str, str]], y: float) -> None:
    width, height = figure.get_size_inches()
    x = 0.12
    for word, colour, hatch in entries:
        swatch = Rectangle(
            (x / width, (y - 0.05) / height), 0.25 / width, 0.11 / height, facecolor=colour, hatch=hatch,
            edgecolor="white" if hatch else INK, linewidth=0 if hatch else 0.4, transform=figure.transFigure,
        )  # fmt: skip
        figure.add_artist(swatch)
        figure.text((x + 0.32) / width, y / height, word, va="center_baseline")
        x += 0.32 + width_of(word) + 0.25


def empty(heading: str, sentence: str, x_label: str, y_label: str) -> Figure:
    """An axis that says why nothing is drawn on it."""
    figure, (ax,) = panels(heading, "", [""])
    ax.set(xlabel=x_label, ylabel=y_label, xticks=[], yticks=[])
    ax.text(0.5, 0.5, sentence, transform=ax.transAxes, ha="center", va="center", fontsize=10)
    arrange(figure, [[]])
    return figure


def svg(figure: Figure) -> bytes:
    """The figure as SVG without a date or version in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def label_ends(ax: Axes, ends: Sequence[End], panel_height: float) -> None:
    """Names right of the panel at the heights of the lines' ends, moved apart where they would overlap.

    A sample of the line stands at each name, and a dotted leader shows which end it belongs to.
    """
    ax.set_ylim(ax.get_ylim())
    ax.set_xlim(ax.get_xlim())
    to_axes = ax.transData + ax.transAxes.inverted()
    places = [tuple(map(float, to_axes.transform((end.x, end.y)))) for end in ends]
    gap = 11 / 72 / panel_height
    heights = spread([y for _, y in places], gap)
    for end, (x, y), height in zip(ends, places, heights, strict=True):
        text: dict[str, Any] = {"transform": ax.transAxes, "va": "center_baseline"}
        if end.bare:
            ax.text(SAMPLE[0], height, end.label, **text)
            continue
        leader: dict[str, Any] = {"color": end.colour, "linewidth": 0.7, "linestyle": (0, (1, 2)), "clip_on": False}
        ax.add_artist(Line2D((x, SAMPLE[0]), (y, height), transform=ax.transAxes, zorder=3, **leader))
        sample = Line2D(SAMPLE, (height, height), color=end.colour, transform=ax.transAxes, clip_on=False)
        if end.dash is None:
            sample.set(xdata=[np.mean(SAMPLE)], ydata=[height], linestyle="none", marker=end.marker, markersize=4)
        else:
            sample.set_linestyle(end.dash)
        ax.add_artist(sample)
        ax.text(LABEL, height, end.label, **text)


def rows(ax: Axes, names: Sequence[str]) -> None:
    """A y axis of named rows, the first on top: row i is at height len(names) - 1 - i."""
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.set_yticks(range(len(names))[::-1], [shortened(name, MAX_LABEL) for name in names])
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")


def left_of(names: Sequence[str]) -> float:
    """Inches that the names of rows take left of a panel."""
    return max([LEFT, *(width_of(shortened(name, MAX_LABEL)) + 0.3 for name in names)])


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights at least `gap` apart, in the order and as near to the given ones as that allows; 0 to 1 if they fit.

    Neighbours that would touch become one block around the mean of their wishes, as in isotonic regression.
    """
    order = sorted(range(len(heights)), key=lambda index: (heights[index], index))
    blocks: list[list[float]] = []
    for place, index in enumerate(order):
        blocks.append([heights[index] - place * gap])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1].extend(last)
    wanted = [float(np.mean(block)) for block in blocks for _ in block]
    highest = max(0.0, 1 - gap * (len(heights) - 1))
    placed = [0.0] * len(heights)
    for place, index in enumerate(order):
        placed[index] = min(max(wanted[place], 0.0), highest) + place * gap
    return placed


def shortened(text: str, length: int) -> str:
    """Long names lose their middle: they differ at their ends."""
    # Dollar signs would be read as mathematics.
    text = text.replace("$", r"\$")
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[head + 1 - length :]}"


def plain_log(ax: Axes, low: float, high: float) -> None:
    """A logarithmic y axis over low to high (both > 0) whose ticks are plain numbers, several even on a short axis."""
    ax.set_yscale("log")
    low = max(low, high / 1e20)  # a denormal number would make the range infinite
    pad = max((high / low) ** 0.06, 1.2)
    ax.set_ylim(low / pad, high * pad)
    short = high / low < 12
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9) if short else (1, 2, 5)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(PLAIN)


def _plain(value: float, _: int | None = None) -> str:
    for least, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            return f"{value / (least if letter != 'k' else 1e3):g}{letter}"
    return f"{value:g}"


PLAIN = FuncFormatter(_plain)
"""Ticks as plain numbers, in thousands and so on where they are long."""
