"""A recipe's sweep: which runs it makes, what stays when it grows, and every mistake told with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainpkg import recipes, sheet
from trainpkg.config.sweep import Range, Sweep
from trainpkg.errors import UserError

RECIPE = """\
task: images
model: {name: conv, width: 8}
data: {name: digits}
train: {max_steps: 10, global_batch: 8}
launch: {device: cpu}
"""
GRID = "sweep: {grid: {optim.lr: [1e-3, 3e-3], seed: [0, 1]}}\n"
Load = Callable[..., sheet.Sheet]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """`load(sweep, rows, lazily=False)` in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(sweep: str, rows: str = "run\trecipe\na\tr\n", lazily: bool = False) -> sheet.Sheet:
        Path("config/recipes").mkdir(parents=True, exist_ok=True)
        Path("config/recipes/r.yaml").write_text(RECIPE + sweep)
        Path("config/runs.tsv").write_text(rows)
        return sheet.load({}, lazily)

    return call


def prints(loaded: sheet.Sheet) -> dict[str, str]:
    return {name: run.fingerprint() for name, run in loaded.runs.items()}


def test_a_grid_is_every_combination_under_names_that_say_what_they_are(load: Load) -> None:
    loaded = load(GRID, "run\trecipe\tmodel.width\na\tr\t\nwide\tr\t64\n")
    assert list(loaded.runs) == [
        f"{row}-lr{lr}-seed{seed}" for row in ("a", "wide") for lr in ("0.001", "0.003") for seed in (0, 1)
    ]
    run = loaded.runs["wide-lr0.003-seed1"]
    assert (run.optim.lr, run.seed, run.model.model_dump()["width"], run.recipe) == (3e-3, 1, 64, "r")
    assert len(set(prints(loaded).values())) == 8


def test_what_a_sweep_made_stays_when_it_grows(load: Load) -> None:
    small = "sweep: {grid: {seed: [0, 1]}, samples: 3, random: {optim.lr: {draw: log, low: 1e-4, high: 1e-1}}}\n"
    large = (
        "sweep:\n  grid: {seed: [2, 1, 0]}\n  samples: 5\n  random:\n    model.width: {draw: int, low: 8, high: 9}\n"
        "    optim.lr: {draw: log, low: 1e-4, high: 1e-1}\n"
    )
    before = load(small)
    after = load(large.replace("    model.width: {draw: int, low: 8, high: 9}\n", ""))
    assert prints(before).items() <= prints(after).items()
    wider = load(large)
    assert {n: r.optim.lr for n, r in before.runs.items()}.items() <= {
        n: r.optim.lr for n, r in wider.runs.items()
    }.items(), "a further key draws for itself"
    rates = [before.runs[f"a-seed0-s000{number}"].optim.lr for number in range(3)]
    assert rates == [before.runs[f"a-seed1-s000{number}"].optim.lr for number in range(3)], (
        "seeds compare like with like"
    )
    assert len(set(rates)) == 3
    other = load(small.replace("samples: 3", "samples: 3, seed: 1"))
    assert rates[0] != other.runs["a-seed0-s0000"].optim.lr


def test_what_is_drawn_is_the_same_on_every_machine() -> None:
    drawn = Sweep(samples=2, random={"optim.lr": Range(draw="log", low=1e-4, high=1e-1)})
    assert [values["optim.lr"] for _, values in drawn.expand("a")] == [0.001524, 0.05401]


@pytest.mark.parametrize(
    ("where", "values"),
    [
        (Range(draw="int", low=3, high=5), {3, 4, 5}),
        (Range(draw="choice", values=("x", None, 2)), {"x", None, 2}),
        (Range(draw="choice", values=(True,)), {True}),
    ],
)
def test_every_value_of_a_range_comes_up_and_no_other(where: Range, values: set[Any]) -> None:
    assert {where.at(share / 999.001) for share in range(1000)} == values


def test_real_ranges_keep_their_ends() -> None:
    for where in (Range(low=0.12345, high=0.98768), Range(draw="log", low=0.12345, high=0.98768)):
        found = [where.at(share) for share in (0.0, 0.5, 0.999999999)]
        assert found[0] == 0.1235 and found[-1] == 0.98768 and found == sorted(found), "four digits, never outside"


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ("{grid: {optim.lrr: [1]}}", "'optim.lrr' is no key that a run can vary; nearest valid key: 'optim.lr'"),
        ("{grid: {run: [a]}}", "'run' is no key that a run can vary"),
        ("{grid: {optim.lr: []}}", "sweep.grid.optim.lr = []"),
        ("{grid: {optim.lr: [1e-3, 0.001]}}", "optim.lr: the value 0.001 stands twice"),
        ("{grid: {optim.lr: [fast]}}", "r.yaml: sweep: optim.lr = 'fast': Input should be a valid number"),
        ("{grid: {data.name: [digits, %s]}}" % (300 * "x"), "is too long for the name of a directory"),
        ("{}", "neither grid nor random says what varies"),
        ("{gird: {}}", "sweep.gird = {}: Extra inputs are not permitted"),
        ("{samples: 3, grid: {seed: [1]}}", "random and samples need each other"),
        ("{random: {seed: {low: 1, high: 2}}}", "random and samples need each other"),
        ("{samples: 2, random: {seed: {low: 2, high: 1}}}", "low = 2 is not below high = 1"),
        ("{samples: 2, random: {seed: {draw: log, low: 0, high: 1}}}", "draw: log needs numbers above 0"),
        ("{samples: 2, random: {seed: {draw: int, low: 0, high: 1.5}}}", "draw: int needs whole numbers"),
        ("{samples: 2, random: {seed: {draw: choice, low: 0}}}", "draw: choice needs values"),
        ("{samples: 2, random: {seed: {low: 0}}}", "draw: uniform needs low and high"),
        ("{samples: 2, grid: {seed: [1]}, random: {seed: {low: 0, high: 1}}}", "seed stands in grid and in random"),
        ("[1]", "r.yaml: sweep = [1]"),
    ],
)
def test_mistakes(load: Load, sweep: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        load(f"sweep: {sweep}\n")
    assert sentence in str(error.value)


def test_a_cell_for_what_the_sweep_varies_is_a_contradiction(load: Load) -> None:
    with pytest.raises(UserError, match=r"runs.tsv:2: run 'a': seed = '3', but the sweep of recipe 'r' varies it"):
        load(GRID, "run\trecipe\tseed\na\tr\t3\n")


def test_names_of_a_sweep_and_of_rows_are_kept_apart(load: Load) -> None:
    rows = "run\trecipe\na\tr\na\tr\n"
    with pytest.raises(UserError, match=r"runs.tsv:3: run 'a': its sweep's 'a-lr0.001-seed0' stands already in line 2"):
        load(GRID, rows)


def test_one_mistake_in_each_of_many_runs_is_not_told_a_thousand_times(load: Load) -> None:
    with pytest.raises(UserError) as error:
        load(f"sweep: {{grid: {{optim.lr: {[-n - 1.0 for n in range(300)]}}}}}\n")
    assert str(error.value).startswith("300 errors in the configuration:")
    assert str(error.value).endswith("and 200 more")


def test_a_job_checks_its_own_run_alone(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = recipes.Recipes.run
    monkeypatch.setattr(recipes.Recipes, "run", lambda *given: made.append(given[1].name) or make(*given))
    loaded = load(GRID, "run\trecipe\toptim.clip_norm\na\tr\t\nbad\tr\t-1\n", lazily=True)
    assert loaded.run("a-lr0.003-seed1").seed == 1
    assert made == ["a-lr0.003-seed1"]
    with pytest.raises(UserError, match=r"optim.clip_norm = '-1'"):
        loaded.run("bad-lr0.001-seed0")
    with pytest.raises(UserError, match=r"nearest run: 'a-lr0.003-seed1'"):
        loaded.run("a-lr0.003-seed11")
