"""The benchmarks' own arithmetic: rounds in turn, ratios within a round, a place for each part. No timing is judged."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import plots, report
from benchmarks.__main__ import PARTS
from benchmarks.commands import Commands, Unsuccessful, python
from benchmarks.harness import Figure, Part, Plot, interleaved
from benchmarks.throughput import share_apart

FIGURES = (Figure("step_s", "step", "s"), Figure("rate", "rate", "1/s", "more"), Figure("note", "note", "", None))
PART = Part("launch", "A title", "a goal", "ours", FIGURES, lambda scale: iter(()))


def rows() -> list[dict[str, Any]]:
    """The second round was measured on a machine half as fast."""
    found = []
    for number, slower in ((1, 1.0), (2, 2.0), (3, 1.0)):
        for way, step_s in (("ours", 1.0), ("theirs", 4.0)):
            row = {"case": "a case", "way": way, "round": number, "size": 2}
            found.append(row | {"step_s": step_s * slower, "rate": 12.0 / step_s / slower})
    return found


def test_ratios_are_of_the_runs_of_one_round_and_medians_have_their_range() -> None:
    lines = report.table(PART, rows())
    assert lines[0] == "| case | way | step, s | rate, 1/s | ours / it: step | ours / it: rate |"
    assert lines[2:] == [
        "| a case | ours | 1 (1 to 2) | 12 (6 to 12) |  |  |",
        "| a case | theirs | 4 (4 to 8) | 3 (1.5 to 3) | 0.25 | 4 |",
    ]


def test_a_way_that_ended_badly_is_counted_and_compared_where_it_did_not() -> None:
    found = [row for row in rows() if (row["way"], row["round"]) != ("theirs", 1)]
    found.append({"case": "a case", "way": "theirs", "round": 1, "failed": "it hung"})
    assert report.table(PART, found)[-1].startswith("| a case | theirs (1 of 3 failed) | 6 (4 to 8) |")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0001234, "1.2e-04"), (0.4567, "0.457"), (12.34, "12.3"), (1234.5, "1,234"), (0, "0")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert report.number(value) == text


def test_ways_take_turns_and_a_bad_end_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def way(name: str) -> Any:
        def measure() -> dict[str, float]:
            order.append(name)
            if order.count(name) == 3:
                raise Unsuccessful("it hung")
            return {"step_s": 1.0}

        return measure

    found = list(interleaved("c", {name: way(name) for name in "ab"}, 2, size=7))
    assert order == ["a", "b"] * 3, "a warm-up that is not told, then two rounds"
    assert [(row["way"], row["round"], row["size"]) for row in found] == [(n, k, 7) for k in (1, 2) for n in "ab"]
    assert [row.get("failed") for row in found] == [None, None, "it hung", "it hung"]


def test_a_slow_way_is_there_in_the_first_round_alone() -> None:
    found = interleaved("c", {name: lambda: {"step_s": 1.0} for name in "ab"}, 3, warm_up=False, once="b")
    assert [(row["way"], row["round"]) for row in found] == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


def test_commands_leave_no_process_behind() -> None:
    child = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True); print('started')"
    with Commands([python("-c", child)]) as started:
        started.wait(20)
        assert len(started.left()) == 1
    assert started.left() == []
    assert started.text == "started\n"


def test_weights_that_end_elsewhere_are_told_from_rounding() -> None:
    begin, ours = [torch.ones(2, 2), torch.zeros(3)], [torch.ones(2, 2), torch.full((3,), 0.1)]
    assert share_apart(begin, ours, ours) == 0.0
    assert share_apart(begin, ours, [torch.ones(2, 2), torch.full((3,), 0.101)]) == pytest.approx(0.01, rel=1e-3)
    elsewhere = [torch.ones(2, 2), torch.tensor([0.1, -0.1, 0.1])]  # the same sum over |w|
    assert share_apart(begin, ours, elsewhere) == pytest.approx((0.04 / 0.03) ** 0.5)


def test_each_part_has_its_place_and_draws_what_it_measures() -> None:
    text = report.README.read_text()
    for name in PARTS:
        part = importlib.import_module(f"benchmarks.{name}").PART
        assert part.name == name
        assert text.count(f"<!-- {name} -->\n") == text.count(f"<!-- {name} ends -->\n") == 1
        assert {plot.figure for plot in part.plots} <= {figure.key for figure in part.figures}


def test_each_kind_of_plot_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FOLDER", tmp_path)
    for kind, beside in (("ratio", "theirs"), ("bars", "theirs"), ("growth", "")):
        part = Part("x", "t", "g", "ours", FIGURES, PART.measure, (Plot(kind, "step_s", beside, "ranks"),))  # type: ignore[arg-type]
        assert [path.stat().st_size > 1000 for path in plots.draw(part, rows())] == [True]
