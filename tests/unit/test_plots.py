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
from run_tree import NOW_S, Tree, evaluation, expected, record

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
@pytest.mark.parametrize("num_runs", [8, 9])
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


def shown(figure: Figure) -> set[str]:
    return {text.get_text() for ax in figure.axes for text in ax.texts}


@pytest.mark.usefixtures("styled")
def test_seeds_are_one_line_with_a_band(tmp_path: Path) -> None:
    """12 runs are too many lines, and three learning rates are not."""
    tree, sheet = Tree(tmp_path), []
    for number in range(12):
        one = expected(f"run{number}", optim__lr=0.001 * (1 + number % 3), seed=number)
        tree.finished(one, [record(10, 5.0 + number), record(20, 1.0 + number)])
        sheet.append(one)
    figure = figure_of(summarise(tmp_path, sheet, NOW_S), "loss_over_steps.svg")
    assert {"lr=0.001 (4 seeds)", "lr=0.002 (4 seeds)", "lr=0.003 (4 seeds)"} <= shown(figure)
    # Runs 0, 3, 6 and 9: between 5 and 14, half of them below 9.5.
    assert data_lines(figure.axes[0])[0].tolist() == [[10, 9.5], [20, 5.5]]
    band = figure.axes[0].collections[0].get_datalim(figure.axes[0].transData)
    assert (band.y0, band.y1) == (1.0, 14.0)


@pytest.mark.usefixtures("styled")
def test_loss_is_over_tokens_where_they_are_counted_and_else_over_samples(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.finished(expected("t", "text"), [record(10, 1.0, tokens=1_000_000), record(20, 0.5, tokens=2_000_000)])
    tree.finished(expected("i", "images"), [record(10, 1.0), record(20, 0.5)])
    tables = summarise(tmp_path, [expected("t", "text"), expected("i", "images")], NOW_S)
    axes = figure_of(tables, "loss_over_data.svg").axes
    assert [(ax.get_xlabel(), data_lines(ax)[0][-1, 0]) for ax in axes] == [("tokens (millions)", 2), ("samples", 1280)]


@pytest.mark.usefixtures("styled")
def test_the_evaluation_is_of_the_recipes_own_metric_and_marks_the_exact_one(tmp_path: Path) -> None:
    records = [record(10, 1.0), evaluation(10, accuracy=0.5, loss=9.0), evaluation(20, accuracy=0.7, loss=8.0)]
    tree = Tree(tmp_path).finished(expected("a"), records)
    tree.json("a", "evaluation.json", {"fingerprint": "f1", "step": 20, "metrics": {"accuracy": 0.75}})
    (ax,) = figure_of(summarise(tmp_path, [expected("a")], NOW_S), "evaluation_over_steps.svg").axes
    assert ax.get_ylabel() == "accuracy (higher is better)"
    assert [line.tolist() for line in data_lines(ax)] == [[[10, 0.5], [20, 0.7]], [[20, 0.75]]]


def swept(folder: Path, num_runs: int) -> Tables:
    """Accuracy is best at the middle learning rate and does not depend on the width; the last run has none."""
    tree, sheet = Tree(folder), []
    for number in range(num_runs):
        one = expected(f"run{number:03}", optim__lr=10.0 ** -(1 + number % 5), model__width=32 * (1 + number % 2))
        value = 0.9 - 0.1 * abs(number % 5 - 2) + 1e-5 * number
        best = {"metric": "accuracy", "mode": "max", "value": value, "step": 40} if number < num_runs - 1 else {}
        tree.finished(one, [record(10, 1.0)], best=best)
        sheet.append(one)
    return summarise(folder, sheet, NOW_S)


@pytest.mark.usefixtures("styled")
@pytest.mark.parametrize("num_runs", [20, 330])
def test_a_sweep_has_a_panel_per_key_that_explains_most_first(tmp_path: Path, num_runs: int) -> None:
    figure = figure_of(swept(tmp_path, num_runs), "sweep.svg")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["digits: optim.lr", "digits: model.width"]
    ax = figure.axes[0]
    assert ax.get_xscale() == "log"
    # The last of those at 1e-3.
    best = (num_runs - 3) // 5 * 5 + 2
    wanted = {f"best: run{best:03}, {0.9 + 1e-5 * best:.4g}", "1 without a metric"}
    assert wanted | ({"median"} if num_runs == 20 else {"median of 329", "best at each value"}) <= shown(figure)
    star = next(line for line in ax.lines if line.get_marker() == "*")
    assert star.get_xydata().tolist() == [[1e-3, pytest.approx(0.9 + 1e-5 * best)]]


@pytest.mark.usefixtures("styled")
def test_memory_has_rows_and_of_many_runs_an_order(tmp_path: Path) -> None:
    tables = built(tmp_path / "few", 3)
    tables.runs["memory_mb"] = [1000.0, 42000.0, 2000.0]
    assert {"42 GB, 2 ranks", "1 GB, 1 rank"} <= shown(figure_of(tables, "memory.svg"))
    tables = built(tmp_path / "many", 20)
    tables.runs["memory_mb"] = 1000.0 * np.arange(20, 0, -1)
    wanted = {"highest: run0, 20 GB", "lowest: run19, 1 GB", "half of the runs: 10.5 GB"}
    assert wanted <= shown(figure_of(tables, "memory.svg"))


@pytest.mark.usefixtures("styled")
def test_attempts_stand_on_a_time_line(tmp_path: Path) -> None:
    tree = Tree(tmp_path).config(expected("a"))
    tree.attempt("a", 1, "again", NOW_S - 36000, 4.0, step_first=1, step_last=10)
    tree.attempt("a", 2, "failed", NOW_S - 18000, 1.0, step_first=11, step_last=12)
    tree.attempt("a", 3, None, NOW_S - 7200, None).json("a", "lock", {"job": "73", "beat_unix_s": NOW_S - 5})
    figure = figure_of(summarise(tmp_path, [expected("a")], NOW_S), "restarts.svg")
    assert any(text.startswith("3 attempts, 1 failed") for text in shown(figure))
    assert {text.get_text() for text in figure.texts} >= {"saved, to be run again", "failed", "running"}
    (ax,) = figure.axes
    starts = [path.vertices[:, 0].min() for bars in ax.collections[::2] for path in bars.get_paths()]
    assert sorted(starts) == pytest.approx([0, 5, 8]), "hours since the first start"


@pytest.mark.usefixtures("styled")
def test_of_many_runs_the_time_line_shows_those_that_lost_most(tmp_path: Path) -> None:
    tree, sheet = Tree(tmp_path), []
    for number in range(40):
        one = expected(f"run{number:02}")
        tree.finished(one, [record(10, 1.0)])
        if number < 30:
            tree.attempt(one.run, 1, "failed", NOW_S - 90000, 1.0 + number / 10)
            tree.attempt(one.run, 2, "finished", NOW_S - 7200, 1.0)
        sheet.append(one)
    top, rows = figure_of(summarise(tmp_path, sheet, NOW_S), "restarts.svg").axes
    assert top.get_title(loc="left") == "attempts at a time"
    assert "at most 40" in {text.get_text() for text in top.texts}
    names = {label.get_text() for label in rows.get_yticklabels()}
    assert names == {f"run{number:02}" for number in range(5, 30)}
    assert rows.get_title(loc="left") == "the 25 runs that lost the most time to restarts, of 40"
    quiet = [expected(f"quiet{number:02}") for number in range(30)]
    for one in quiet:
        Tree(tmp_path / "quiet").finished(one, [record(10, 1.0)])
    _, rows = figure_of(summarise(tmp_path / "quiet", quiet, NOW_S), "restarts.svg").axes
    assert rows.get_title(loc="left") == "the 25 first runs, none started twice, of 30"


@pytest.mark.usefixtures("styled")
def test_more_recipes_than_a_page_holds_are_left_to_the_tables(tmp_path: Path) -> None:
    tree, sheet = Tree(tmp_path), []
    for number in range(12):
        for run in range(1 + (number < 8)):
            one = expected(f"run{number}-{run}", f"recipe{number:02}")
            tree.finished(one, [record(10, 1.0, memory_mb=100.0)])
            sheet.append(one)
    tables = summarise(tmp_path, sheet, NOW_S)
    for name in ("loss_over_steps.svg", "throughput_over_world_size.svg", "memory.svg"):
        figure = figure_of(tables, name)
        assert [ax.get_title(loc="left") for ax in figure.axes] == [
            f"recipe{number:02} (2 runs)" for number in range(8)
        ]
        assert "4 more recipes" in figure.texts[1].get_text()


def test_numbers_that_no_axis_can_hold_are_left_out(tmp_path: Path) -> None:
    """Damaged files and losses that diverged to the end of the floating point numbers: every plot is drawn."""
    tree = Tree(tmp_path)
    huge = [record(10, 1e308, time_s=1e300, samples_per_second=1e308), record(20, 1e-308, memory_mb=1e300)]
    best = {"metric": "accuracy", "mode": "max", "value": 1e308, "step": 40}
    tree.finished(expected("huge", optim__lr=1e308), huge, best=best, memory_mb=1e308)
    tree.attempt("huge", 2, "failed", 1e20, 1.0).attempt("huge", 3, "failed", NOW_S, 1e300)
    tree.attempt("huge", 4, "failed", NOW_S, -5.0)
    tree.finished(expected("good"), [record(10, 2.0), record(20, 1.0)])
    tables = summarise(tmp_path, [expected("huge", optim__lr=1e308), expected("good")], NOW_S)
    made = drawn(tables)
    assert "huge (not finite)" in words(made["loss_over_steps.svg"])
    assert "good" in words(made["loss_over_steps.svg"])
    assert "3 attempts, 2 failed" in "\n".join(words(made["restarts.svg"]))
