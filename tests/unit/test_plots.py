"""Plots: what is drawn, what is said beside it, and that the same numbers give the same bytes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from run_tree import NOW_S, Tree, expected, record

from trainpkg.tables import plots as plotting
from trainpkg.tables.assemble import Tables
from trainpkg.tables.plots import canvas
from trainpkg.tables.summarise import summarise

NAMES = [
    "evaluation_over_steps.svg", "loss_over_data.svg", "loss_over_steps.svg", "loss_over_time.svg", "memory.svg",
    "restarts.svg", "sweep.svg", "throughput_over_steps.svg", "throughput_over_world_size.svg",
]  # fmt: skip


def built(folder: Path, num_runs: int, recipe: str = "digits", **config: Any) -> Tables:
    """Runs whose loss at step s is number + 1 + 10 / s, at 100 samples/s times the number of ranks, 1 or 2."""
    tree, sheet = Tree(folder), []
    for number in range(num_runs):
        one = expected(
            f"run{number}",
            recipe,
            train__global_batch=32 * (1 + number % 2),
            **{"optim__lr": 0.001 * (1 + number), **config},
        )
        steps = [
            record(step, number + 1 + 10 / step, samples_per_second=100.0 * (1 + number % 2)) for step in (10, 20, 40)
        ]
        tree.finished(one, steps, ranks=1 + number % 2)
        sheet.append(one)
    return summarise(folder, sheet, NOW_S)


def drawn(tables: Tables) -> dict[str, bytes]:
    return plotting.plots(tables.runs, tables.steps, tables.evaluations, tables.attempts)


def words(svg: bytes) -> list[str]:
    """The texts of a plot; matplotlib notes them as comments beside the outlines."""
    return re.findall(r"<!-- (.*?) -->", svg.decode())


@pytest.fixture
def styled() -> Iterator[None]:
    with canvas.style():
        yield


def figure_of(tables: Tables, name: str) -> Figure:
    return plotting.figures(tables.runs, tables.steps, tables.evaluations, tables.attempts)[name]()


def data_lines(ax: Axes) -> list[np.ndarray[Any, Any]]:
    """Points of the lines in data coordinates, without the samples beside labels."""
    return [line.get_xydata() for line in ax.lines if line.get_transform() == ax.transData]


def test_files_are_svg_without_a_date_and_equal_twice(tmp_path: Path) -> None:
    tables = built(tmp_path, 3)
    first, second = drawn(tables), drawn(tables)
    assert sorted(first) == NAMES
    assert first == second
    for content in first.values():
        assert ElementTree.fromstring(content).tag.endswith("svg")
        assert b"dc:date" not in content


def test_users_own_style_changes_nothing(tmp_path: Path) -> None:
    tables = built(tmp_path, 2)
    before = drawn(tables)
    with mpl.rc_context({"lines.linewidth": 9, "svg.hashsalt": "other", "axes.facecolor": "red", "font.size": 20}):
        assert drawn(tables) == before


@pytest.mark.parametrize("runs", [[], ["planned"]])
def test_without_records_the_axis_says_so(tmp_path: Path, runs: list[str]) -> None:
    tables = summarise(tmp_path, [expected(run) for run in runs], NOW_S)
    others = {"sweep.svg": "no config key varies between evaluated runs", "restarts.svg": "no attempts yet"}
    for name, content in drawn(tables).items():
        assert others.get(name, "no finished records yet") in words(content)


@pytest.mark.usefixtures("styled")
def test_up_to_eight_runs_are_named_lines(tmp_path: Path) -> None:
    tables = built(tmp_path, 8)
    (ax,) = figure_of(tables, "loss_over_steps.svg").axes
    assert len(data_lines(ax)) == 8
    assert data_lines(ax)[2].tolist() == [[10, 4.0], [20, 3.5], [40, 3.25]]
    assert len({(line.get_color(), str(line.get_linestyle())) for line in ax.lines[:8]}) == 8
    assert {f"run{number}" for number in range(8)} <= {text.get_text() for text in ax.texts}


@pytest.mark.usefixtures("styled")
def test_more_runs_are_median_range_and_extremes(tmp_path: Path) -> None:
    tables = built(tmp_path, 9)
    (ax,) = figure_of(tables, "loss_over_steps.svg").axes
    median, lowest, highest = data_lines(ax)
    # The fifth of nine runs has number 4: loss 5 + 10 / step.
    assert median[0].tolist() == [10, 6.0]
    assert median[-1].tolist() == pytest.approx([40, 5.25])
    assert lowest[-1].tolist() == [40, 1.25]
    assert highest[-1].tolist() == [40, 9.25]
    shown = {text.get_text() for text in ax.texts}
    assert {"median of 9", "lowest: run0", "highest: run8", "10 % are below", "90 % are below"} <= shown


@pytest.mark.usefixtures("styled")
def test_a_run_that_died_early_is_no_extreme(tmp_path: Path) -> None:
    tables = built(tmp_path, 10)
    tables.runs.loc[9, "status"] = "failed"
    (ax,) = figure_of(tables, "loss_over_steps.svg").axes
    assert "highest: run8" in {text.get_text() for text in ax.texts}


@pytest.mark.usefixtures("styled")
def test_recipes_have_panels_of_their_own(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    sheet = [expected("a", "digits"), expected("b", "gpt"), expected("c", "gpt"), expected("d", "planned")]
    for one in sheet[:3]:
        tree.finished(one, [record(10, 1.0)])
    tables = summarise(tmp_path, sheet, NOW_S)
    titles = [ax.get_title(loc="left") for ax in figure_of(tables, "loss_over_time.svg").axes]
    assert titles == ["digits (1 run)", "gpt (2 runs)"]


@pytest.mark.usefixtures("styled")
def test_time_has_a_unit_that_suits_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for run, seconds in (("s", 100.0), ("m", 3600.0), ("h", 36000.0)):
        tree.finished(expected(run, f"r{run}"), [record(10, 1.0, time_s=seconds / 2), record(20, 1.0, time_s=seconds)])
    tables = summarise(tmp_path, [expected(run, f"r{run}") for run in "smh"], NOW_S)
    axes = figure_of(tables, "loss_over_time.svg").axes
    assert [(ax.get_xlabel(), data_lines(ax)[0][-1, 0]) for ax in axes] == [
        ("training time (seconds)", 100.0), ("training time (minutes)", 60.0), ("training time (hours)", 10.0),
    ]  # fmt: skip


@pytest.mark.usefixtures("styled")
def test_unfinished_and_diverged_runs_say_so(tmp_path: Path) -> None:
    tree = Tree(tmp_path).finished(expected("nan"), [record(10, 2.0), record(20, None), record(30, float("inf"))])
    tree.config(expected("dead")).metrics("dead", [record(10, 2.0)]).attempt("dead", 1, "failed", NOW_S - 9000, 1.0)
    tables = summarise(tmp_path, [expected("nan"), expected("dead")], NOW_S)
    (ax,) = figure_of(tables, "loss_over_steps.svg").axes
    assert [line.tolist() for line in data_lines(ax)] == [[[10, 2.0]], [[10, 2.0]]]
    assert {"nan (not finite)", "dead (failed)"} <= {text.get_text() for text in ax.texts}


@pytest.mark.usefixtures("styled")
def test_throughput_stands_beside_the_ideal(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    sheet = []
    for ranks, speed in ((2, 100.0), (4, 180.0), (8, 300.0)):
        one = expected(f"r{ranks}", train__global_batch=32 * ranks)
        tree.finished(one, [record(10, 1.0, samples_per_second=speed)], ranks)
        sheet.append(one)
    tables = summarise(tmp_path, sheet, NOW_S)
    (ax,) = figure_of(tables, "throughput_over_world_size.svg").axes
    points, medians, ideal = (line.tolist() for line in data_lines(ax))
    assert points == medians == [[2, 100], [4, 180], [8, 300]]
    assert ideal == [[2, 100], [4, 200], [8, 400]]
    assert {"32/rank: 75 %", "ideal"} <= {text.get_text() for text in ax.texts}
    assert ax.get_ylim()[1] > 400


@pytest.mark.usefixtures("styled")
def test_one_world_size_has_no_ideal(tmp_path: Path) -> None:
    Tree(tmp_path).finished(expected("a"), [record(10, 1.0)])
    (ax,) = figure_of(summarise(tmp_path, [expected("a")], NOW_S), "throughput_over_world_size.svg").axes
    shown = {text.get_text() for text in ax.texts}
    assert "one world size: nothing to compare" in shown
    assert "ideal" not in shown


@pytest.mark.usefixtures("styled")
@pytest.mark.parametrize("num_runs", [2, 8, 9])
@pytest.mark.parametrize("name", NAMES)
def test_no_text_overlaps_another_or_leaves_the_page(tmp_path: Path, num_runs: int, name: str) -> None:
    """Measured on the drawn figure; names are as long as names get, in two recipes side by side."""
    tree, sheet = Tree(tmp_path), []
    for number in range(2 * num_runs):
        one = expected(f"WIDE_NAME_{number:02}_{'W' * 40}", f"r{number % 2}", train__global_batch=32 * (1 + number % 4))
        tree.finished(one, [record(10, 1.0), record(20, 0.5)], ranks=1 + number % 4)
        sheet.append(one)
    figure = figure_of(summarise(tmp_path, sheet, NOW_S), name)
    drawn = FigureCanvasAgg(figure)
    drawn.draw()
    page = figure.bbox
    boxes = []
    for text in [*figure.texts, *(text for ax in figure.axes for text in [*ax.texts, ax._left_title, ax.xaxis.label])]:
        if text.get_text():
            boxes.append((text.get_text(), text.get_window_extent(drawn.get_renderer())))
    for text, box in boxes:
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1, text
    for index, (text, box) in enumerate(boxes):
        for other, beside in boxes[index + 1 :]:
            assert not box.shrunk(0.98, 0.9).overlaps(beside.shrunk(0.98, 0.9)), f"{text} on {other}"


def test_spread_moves_labels_apart_and_no_further() -> None:
    assert canvas.spread([0.1, 0.5], 0.1) == pytest.approx([0.1, 0.5])
    assert canvas.spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert canvas.spread([0.6, 0.5, 0.52], 0.1) == pytest.approx([0.64, 0.44, 0.54])
    assert canvas.spread([0.0, 0.0, 0.0], 0.1) == pytest.approx([0.0, 0.1, 0.2])
    assert canvas.spread([1.0, 1.0], 0.1) == pytest.approx([0.9, 1.0])
    # The third block pushes the second into the first.
    assert canvas.spread([0.3, 0.45, 0.5, 0.5], 0.1) == pytest.approx([0.2875, 0.3875, 0.4875, 0.5875])
    assert canvas.spread([], 0.1) == []


def test_shortened_keeps_both_ends() -> None:
    assert canvas.shortened("abcdefghij", 5) == "ab…ij"
    assert canvas.shortened("abc", 5) == "abc"
    assert canvas.shortened("a$b", 5) == r"a\$b"
