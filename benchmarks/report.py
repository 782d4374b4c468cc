"""Tables in README.md from the results' files, and which plots are drawn. Measures nothing.

A table has a line per case and way: each figure's median and, in brackets, the smallest and largest of its rounds; then
what ours is of it: the median (and range) of the ratios of the rounds, each of two runs that followed one another.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.harness import RESULTS, Figure, Part, Row

README = Path(__file__).with_name("README.md")


def rewrite(part: Part) -> None:
    """Table and plots of a part that has results."""
    path = RESULTS / f"{part.name}.json"
    if not path.exists():
        return
    result = json.loads(path.read_text())
    drawn = plots.draw(part, result["rows"])
    lines = [said(result), "", *table(part, result["rows"])]
    lines += [line for path in drawn for line in ("", f"![{part.title}]({path.relative_to(README.parent)})")]
    text = README.read_text()
    begin, end = f"<!-- {part.name} -->\n", f"<!-- {part.name} ends -->\n"
    before, found, after = text.partition(begin)
    assert found, f"README.md has no place for {part.name}"
    README.write_text(before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after.partition(end)[2])
    print("\n".join(lines), flush=True)


def said(result: dict[str, Any]) -> str:
    """Where and when, in a sentence."""
    machine, loads = result["machine"], [row["load"] for row in result["rows"] if "load" in row]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version != "absent")
    load = f", load {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    low = f", at nice {machine['nice']}" if machine["nice"] else ""
    where = f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gb']} GB{load}{low}"
    rounds = f"{result['repetitions']} rounds in {result['took_s'] / 60:.0f} minutes"
    return f"{machine['date']}, {rounds}; {where}; Python {machine['python']}, {versions}."


def table(part: Part, rows: list[Row]) -> list[str]:
    """As Markdown."""
    figures = [figure for figure in part.figures if any(figure.key in row for row in rows)]
    compared = [figure for figure in figures if figure.better and len({row["way"] for row in rows}) > 1]
    heads = [f"{figure.name}, {figure.unit}" if figure.unit else figure.name for figure in figures]
    heads += [f"{part.ours} / it: {figure.name}" for figure in compared]
    lines = ["| " + " | ".join(["case", "way", *heads]) + " |", "|---|---|" + "---|" * len(heads)]
    for case, way in dict.fromkeys((row["case"], row["way"]) for row in rows):
        mine = [row for row in rows if (row["case"], row["way"]) == (case, way)]
        cells = [spread([row[figure.key] for row in mine if figure.key in row]) for figure in figures]
        cells += ["" if way == part.ours else spread(ratios(part, rows, case, way, figure)) for figure in compared]
        failed = [row["failed"] for row in mine if "failed" in row]
        name = f"{way} ({len(failed)} of {len(mine)} failed)" if failed else way
        lines.append("| " + " | ".join([case, name, *cells]) + " |")
    return lines


def ratios(part: Part, rows: list[Row], case: str, way: str, figure: Figure) -> list[float]:
    """Ours over theirs, by round."""
    its = {
        (row["way"], row["round"]): row[figure.key]
        for row in rows
        if row["case"] == case and row.get(figure.key) is not None
    }
    rounds = [number for name, number in its if name == way and (part.ours, number) in its]
    return [its[part.ours, number] / its[way, number] for number in rounds if its[way, number]]


def spread(values: list[Any]) -> str:
    """Median (smallest to largest)."""
    found = [value for value in values if value is not None]
    if not found:
        return ""
    if not isinstance(found[0], int | float):
        return str(found[-1])
    middle, low, high = statistics.median(found), min(found), max(found)
    return number(middle) if len(found) == 1 or low == high else f"{number(middle)} ({number(low)} to {number(high)})"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    if value == 0 or (value == int(value) and abs(value) < 1e6):
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:.3g}"
