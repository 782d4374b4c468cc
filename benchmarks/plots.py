"""Plots of the benchmarks: ratios over ranks, bars of throughput, growth on log axes; as SVG beside the tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.harness import Figure, Part, Plot, Row

FOLDER = Path(__file__).with_name("plots")
OURS, OTHERS = "#c2410c", ("#334155", "#64748b", "#0f766e", "#7c3aed", "#a16207", "#be185d", "#15803d")


def draw(part: Part, rows: list[Row]) -> list[Path]:
    """The part's plots; paths of their files. A plot that no row has a number for is left out."""
    FOLDER.mkdir(exist_ok=True)
    paths = []
    plt.rcParams["svg.hashsalt"] = part.name  # the same figures, the same file
    for plot in part.plots:
        its = [row for row in rows if row.get(plot.figure) is not None]
        if not its:
            continue
        figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
        KINDS[plot.kind](axes, part, plot, its)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
        path = FOLDER / f"{part.name}-{plot.figure}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close()
        paths.append(path)
    return paths


def colours(part: Part, ways: list[str]) -> dict[str, str]:
    others = iter(OTHERS * 3)
    return {way: OURS if way == part.ours else next(others) for way in ways}


def ways_of(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["way"] for row in rows))


def figure_of(part: Part, key: str) -> Figure:
    return next(one for one in part.figures if one.key == key)


def beside(rows: list[Row], plot: Plot, way: str, case: str) -> list[float]:
    """Ratios of the rounds: this way over the one that all are compared with."""
    its = {(row["way"], row["round"]): row[plot.figure] for row in rows if row["case"] == case}
    rounds = [number for name, number in its if name == way and (plot.beside, number) in its]
    return [its[way, number] / its[plot.beside, number] for number in rounds]


def ratio(axes: Axes, part: Part, plot: Plot, rows: list[Row]) -> None:
    rows = [row for row in rows if row.get("size") is not None]
    sizes = {row["case"]: row["size"] for row in rows}
    for way, colour in colours(part, ways_of(rows)).items():
        points = [(size, found) for case, size in sizes.items() if (found := beside(rows, plot, way, case))]
        if not points:
            continue
        middles = [statistics.median(found) for _, found in points]
        low = [middle - min(found) for middle, (_, found) in zip(middles, points, strict=True)]
        high = [max(found) - middle for middle, (_, found) in zip(middles, points, strict=True)]
        axes.errorbar(
            [size for size, _ in points], middles, [low, high], marker="o", capsize=3, color=colour, label=way
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(sizes.values())), [str(size) for size in sorted(set(sizes.values()))])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(plot.sizes)
    axes.set_ylabel(f"{figure_of(part, plot.figure).name}: ratio to {plot.beside}")


def bars(axes: Axes, part: Part, plot: Plot, rows: list[Row]) -> None:
    cases = list(dict.fromkeys(row["case"] for row in rows))
    shades = colours(part, ways_of(rows))
    width = 0.8 / len(shades)
    for index, (way, colour) in enumerate(shades.items()):
        found = [(place, one) for place, case in enumerate(cases) if (one := beside(rows, plot, way, case))]
        middles = [statistics.median(one) for _, one in found]
        errors = [
            [middle - min(one) for middle, (_, one) in zip(middles, found, strict=True)],
            [max(one) - middle for middle, (_, one) in zip(middles, found, strict=True)],
        ]
        left = [place + (index - len(shades) / 2 + 0.5) * width for place, _ in found]
        axes.bar(left, middles, width, yerr=errors, capsize=2, color=colour, label=way)
    axes.set_xticks(range(len(cases)), cases)
    axes.set_ylabel(f"{figure_of(part, plot.figure).name}: ratio to {plot.beside}")


def growth(axes: Axes, part: Part, plot: Plot, rows: list[Row]) -> None:
    rows = [row for row in rows if row.get("size")]
    for way, colour in colours(part, ways_of(rows)).items():
        sizes = sorted({row["size"] for row in rows if row["way"] == way})
        found = [[row[plot.figure] for row in rows if (row["way"], row["size"]) == (way, size)] for size in sizes]
        axes.plot(sizes, [statistics.median(one) for one in found], marker="o", color=colour, label=way)
        axes.fill_between(sizes, [min(one) for one in found], [max(one) for one in found], color=colour, alpha=0.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(plot.sizes)
    told = figure_of(part, plot.figure)
    axes.set_ylabel(f"{told.name}, {told.unit}")


KINDS: dict[str, Callable[[Axes, Part, Plot, list[Row]], None]] = {"ratio": ratio, "bars": bars, "growth": growth}
