"""What is read anew and what is not, and that it makes no difference to the tables."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_tree import NOW_S, Tree, evaluation, expected, has, lines, record, row
from test_damaged_files import DAMAGED

from trainpkg import sheet as sheets
from trainpkg.errors import UserError
from trainpkg.recipes import Recipes
from trainpkg.tables import cache, reading
from trainpkg.tables.assemble import Tables
from trainpkg.tables.expected import expected_runs
from trainpkg.tables.files import bulk, collect, records
from trainpkg.tables.files.collect import Expected
from trainpkg.tables.files.configs import Configs
from trainpkg.tables.summarise import write_tables


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names of the runs whose files were opened."""
    found: set[str] = set()
    content = collect._Files.content

    def noted(self: collect._Files, name: str, about: str = "") -> bytes | None:
        found.add(Path(self.listing.path).name)
        return content(self, name, about)

    monkeypatch.setattr(collect._Files, "content", noted)
    yield found


def sheet(num_runs: int) -> list[Expected]:
    return [expected(f"run{number}", optim__lr=number / 7, seed=number % 2) for number in range(num_runs)]


def fill(results: Path, runs: list[Expected]) -> Tree:
    tree = Tree(results)
    for number, one in enumerate(runs):
        steps = [record(step, 1.0 + number / step) for step in (10, 20, 30)]
        tree.finished(one, [*steps, evaluation(30, loss=0.5 + number, **{f"own{number % 3}": 1.0})])
    return tree


def tables_of(results: Path, runs: list[Expected], name: str = "tables") -> Tables:
    return at(results, runs, NOW_S, name)


def at(results: Path, runs: list[Expected], now_s: float, name: str = "tables") -> Tables:
    return write_tables(results, runs, now_s, results / name)


def written(results: Path, name: str = "tables") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (results / name).iterdir() if path.is_file()}


def test_only_runs_that_changed_are_opened(tmp_path: Path, opened: set[str]) -> None:
    runs = sheet(12)
    tree = fill(tmp_path, runs[:10])
    tables_of(tmp_path, runs[:10])
    assert len(opened) == 10
    opened.clear()
    tables_of(tmp_path, runs[:10])
    assert opened == set()
    fill(tmp_path, runs[10:])
    tree.metrics("run3", [record(10, 7.0)])
    tables = tables_of(tmp_path, runs)
    assert opened == {"run3", "run10", "run11"}
    assert row(tables.runs, "run3")["num_records"] == 1


def changed_order(runs: list[Expected]) -> list[Expected]:
    return [runs[2], runs[0], *runs[4:]]


def fewer(runs: list[Expected]) -> list[Expected]:
    return runs[:3]


CHANGES: dict[str, Any] = {
    "nothing": lambda tree, runs: runs,
    "another order, and two that are not in the sheet any more": lambda tree, runs: changed_order(runs),
    "a directory is gone": lambda tree, runs: [remove(tree, "run1"), runs][1],
    "another recipe of the same fingerprint": lambda tree, runs: [*runs[:2], expected("run2", "other"), *runs[3:]],
    "another fingerprint": lambda tree, runs: [*runs[:2], expected("run2", fingerprint="new"), *runs[3:]],
    "more of a key's values, of another type": lambda tree, runs: more(tree, runs, optim__lr="fast"),
    "a key that no other has": lambda tree, runs: more(tree, runs, model__own=3),
    "a metric that no other has": lambda tree, runs: [
        tree.finished(expected("new"), [evaluation(1, other=2.0)]), [*runs, expected("new")]
    ][1],
    "a run goes on": lambda tree, runs: [tree.attempt("run0", 2, "failed", NOW_S - 60, 0.01), runs][1],
}  # fmt: skip


def remove(tree: Tree, run: str) -> None:
    (tree.results / "runs" / run).rename(tree.results / "gone")


def more(tree: Tree, runs: list[Expected], **config: Any) -> list[Expected]:
    one = expected("new", **config)
    tree.finished(one, [record(10, 1.0)])
    return [*runs[:1], one, *runs[1:]]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_same_bytes_as_if_all_was_read_anew(tmp_path: Path, change: Any) -> None:
    runs = sheet(6)
    tree = fill(tmp_path, runs)
    tables_of(tmp_path, runs)
    runs = change(tree, runs)
    tables_of(tmp_path, runs)
    tables_of(tmp_path, runs, "anew")
    assert written(tmp_path) == written(tmp_path, "anew")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (cache.INDEX, "removed"), (cache.INDEX, "torn"), (cache.INDEX, "other"), ("steps.parquet", "removed"),
        ("evaluations.parquet", "torn"), ("attempts.parquet", "other"), ("steps.parquet", "touched"),
    ],
)  # fmt: skip
def test_a_cache_that_cannot_be_relied_on_is_no_cache(tmp_path: Path, opened: set[str], name: str, damage: str) -> None:
    runs = sheet(3)
    fill(tmp_path, runs)
    tables_of(tmp_path, runs)
    before, path = written(tmp_path), tmp_path / "tables" / cache.FOLDER / name
    content = path.read_bytes()
    path.unlink()
    if damage != "removed":
        path.write_bytes({"torn": content[:100], "other": b"x" * len(content), "touched": content}[damage])
    opened.clear()
    tables_of(tmp_path, runs)
    assert written(tmp_path) == before
    assert len(opened) == (0 if damage == "touched" else 3)


@pytest.mark.parametrize("links", [True, False])
def test_tables_that_snakemake_deletes_before_the_rule_are_kept_by_a_second_name(
    tmp_path: Path, opened: set[str], monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    runs = sheet(3)
    fill(tmp_path, runs)
    if not links:  # some network file systems know none
        monkeypatch.setattr(Path, "hardlink_to", lambda self, target: exec("raise OSError(95, 'not supported')"))
    tables_of(tmp_path, runs)
    before = written(tmp_path)
    for name in before:
        (tmp_path / "tables" / name).unlink()
    opened.clear()
    tables_of(tmp_path, runs)
    assert opened == set()
    assert written(tmp_path) == before


def test_another_version_of_the_code_reads_anew(
    tmp_path: Path, opened: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = sheet(2)
    fill(tmp_path, runs)
    tables_of(tmp_path, runs)
    opened.clear()
    monkeypatch.setattr(cache, "_version", lambda: "another")
    tables_of(tmp_path, runs)
    assert len(opened) == 2


def test_what_the_clock_or_the_sheet_decide_is_not_kept(tmp_path: Path) -> None:
    """A running run is called failed once its lock is stale; a run without a config of its own shows the sheet's."""
    tree = Tree(tmp_path).config(expected("going")).metrics("going", [record(10, 1.0)])
    tree.attempt("going", 1, None, NOW_S - 60, None).json("going", "lock", {"beat_unix_s": NOW_S - 5})
    os.utime(tmp_path / "runs/going/lock", (NOW_S - 5, NOW_S - 5))
    tree.finished(expected("bare"), [record(10, 1.0)])
    (tmp_path / "runs/bare/config.yaml").unlink()
    for now_s, status, rate in ((NOW_S, "running", 1.0), (NOW_S + 3600, "failed", 2.0)):
        runs = [expected("going"), expected("bare", optim__lr=rate)]
        found = at(tmp_path, runs, now_s).runs
        assert row(found, "going")["status"] == status
        has(row(found, "bare"), **{"status": "finished", "optim.lr": rate})


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path, opened: set[str]) -> None:
    """It may change once more within the resolution of its time, and then look the same."""
    runs = sheet(1)
    fill(tmp_path, runs)
    just_now = max(path.stat().st_mtime for path in (tmp_path / "runs").rglob("*")) + 1
    at(tmp_path, runs, just_now)
    opened.clear()
    at(tmp_path, runs, NOW_S)
    assert opened == {"run0"}


def test_several_processes_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [*sheet(8), expected("absent")]
    fill(tmp_path, runs[:8])
    (tmp_path / "runs/run5/config.yaml").unlink()  # takes its config from the sheet, which processes do not know
    tables_of(tmp_path, runs)
    monkeypatch.setattr(reading, "MANY", 1)
    monkeypatch.setattr(reading, "CHUNK", 3)
    tables_of(tmp_path, runs, "together")
    assert written(tmp_path) == written(tmp_path, "together")


# --- the sheet ---


def workflow(folder: Path, rows: str, recipe: str = "model: {name: conv}", config: str = "") -> Path:
    (folder / "runs.tsv").write_text(f"run\trecipe\toptim.lr\n{rows}")
    more = "task: images\ndata: {name: digits}\ntrain: {max_steps: 40, global_batch: 64}\n"
    (folder / "digits.yaml").write_text(f"{recipe}\n{more}")
    places = f"results_dir: {folder}/results\nsheet: {folder}/runs.tsv\nrecipes: {folder}\n"
    (folder / "config.yaml").write_text(f"{places}{config}\n")
    return folder / "config.yaml"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs that were made of their rows."""
    found: list[str] = []
    run = Recipes.run

    def noted(self: Recipes, row: Any, problems: Any) -> Any:
        found.append(row.name)
        return run(self, row, problems)

    monkeypatch.setattr(Recipes, "run", noted)
    return found


def test_rows_with_the_same_words_are_not_checked_again(tmp_path: Path, made: list[str]) -> None:
    rows = "a\tdigits\t0.1\nb\tdigits\t\n"

    def summarised(**changes: str) -> tuple[list[str], list[str | None]]:
        made.clear()
        path = workflow(tmp_path, **{"rows": rows, **changes})
        loaded = sheets.load(path, lazily=True)
        expected = list(expected_runs(loaded, path, cache.load_runs(tmp_path / "results/tables")))
        names, fingerprints = list(made), [one.fingerprint for one in expected]
        assert fingerprints == [run.fingerprint() for run in sheets.load(path).runs.values()]
        write_tables(loaded.results_dir, expected, NOW_S, tmp_path / "results/tables")
        return names, fingerprints

    first, before = summarised()
    assert first == ["a", "b"]
    assert summarised() == ([], before)
    assert summarised(rows=rows + "c\tdigits\t0.3\n")[0] == ["c"]
    assert summarised(rows=rows.replace("0.1", "0.2"))[0] == ["a"]
    assert summarised(recipe="model: {name: conv, width: 8}")[0] == ["a", "b"]
    assert summarised(recipe="model: {name: conv, width: 8}", config="logging: {every_steps: 5}")[0] == ["a", "b"]


def test_all_that_is_wrong_in_the_sheet_is_said_at_once(tmp_path: Path) -> None:
    path = workflow(tmp_path, "a\tdigits\tx\nb\tdigits\ty\n")
    with pytest.raises(UserError, match=r"(?s)optim.lr = 'x'.*optim.lr = 'y'"):
        list(expected_runs(sheets.load(path, lazily=True), path, None))


# --- records of many runs at once ---


def same(first: records.Metrics, second: records.Metrics) -> bool:
    parts = [(its.evals, its.num_bad, its.num_nonfinite, its.num_overwritten, its.notes) for its in (first, second)]
    return repr(parts[0]) == repr(parts[1]) and first.train.tobytes() == second.train.tobytes()


ODD = [
    b'{"kind": "train", "attempt": 1, "generation": 0, "step": 1, "loss": 1}{"kind": "train", "step": 2}\n',
    b'{"kind": "train", "attempt": 1, "generation": 0,\n"step": 1, "loss": 1}\n',
    b'\xef\xbb\xbf{"kind": "train", "attempt": 1, "generation": 0, "step": 1, "loss": 1.0}\n',
    b'{"kind": "train", "attempt": 1, "generation": 0, "step": 1, "loss": 1.0, "samples": 9007199254740993}\n',
    b'{"kind": "train", "attempt": 1, "generation": 0, "step": 1, "loss": 1.0, "x": "\xe9"}\n',
    b'{"kind": "train", "attempt": 1, "generation": 0, "step": 1, "step": 2, "loss": 1.0}\n',
    b'{"kind": "train", "attempt": null, "generation": 0, "step": 1, "loss": 1.0}\n',
    b'{"kind": "train", "step": 1, "loss": 1.0}\n{"kind": "train", "step": 2}\n',
    b'{"kind": "train", "attempt": 1, "generation": 0, "step": 1e2, "loss": 1.0}\n',
    b'{"kind": "train", "attempt": 1, "generation": 0, "step": 1, "loss": 1e400}\n',
    b'{"kind": "tr\\u0061in", "attempt": 1, "generation": 0, "step": 1, "loss": -0.0, "lr": NaN}\n',
    b'{"kind": "eval", "attempt": 1, "generation": 0, "step": 1, "metrics": {"a": true}}\n',
    b'{"kind": "eval", "attempt": 1, "generation": 0, "step": 1, "loss": true, "metrics": {"a": 1}}\n',
    b'{"kind": "other", "attempt": 1, "generation": 0, "step": 1}\n',
]


def test_many_files_at_once_give_what_each_gives_alone() -> None:
    draw = random.Random(5)
    good = [
        lines(
            record(draw.choice([10, 20, 30]), draw.random(), draw.choice([1, 1, 2]), lr=10 ** draw.uniform(-300, 9))
            for _ in range(draw.randrange(1, 6))
        )
        + lines([evaluation(draw.choice([10, 20]), loss=draw.random())] * draw.randrange(3))
        for _ in range(60)
    ]  # fmt: skip
    contents = [*good, *(content for content, *_ in DAMAGED.values()), *ODD]
    for _ in range(3):
        draw.shuffle(contents)
        for its, content in zip(bulk.parse_all(contents), contents, strict=True):
            assert same(its, records.parse(content)), content


def test_good_files_go_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "parse", lambda content: pytest.fail("line by line"))
    bulk.parse_all([lines([record(10, 1.0), record(20, 2.0), evaluation(20, loss=1.0)])] * 3)


def test_what_one_writer_says_of_a_step_in_several_lines_is_one_record() -> None:
    def train(step: int, **said: Any) -> dict[str, Any]:
        return {"kind": "train", "attempt": 1, "generation": 0, "step": step, **said}

    content = lines([
        train(5, loss=1.0, lr=0.3), evaluation(5, loss=0.5, accuracy=0.9), train(5, lr=0.1, time_s=2.0),
        evaluation(5, train_runtime=7.0, accuracy=0.8), train(6, loss=math.nan), train(6, lr=0.2),
        train(7, loss=math.nan), train(7, loss=3.0), evaluation(5, attempt=0, loss=9.0), train(5, attempt=0, lr=9.0),
    ])  # fmt: skip
    [found] = bulk.parse_all([content])
    assert same(found, records.parse(content))
    assert found.column("loss")[0] == 1.0 and found.column("loss")[2] == 3.0
    assert found.column("lr")[:2].tolist() == [0.1, 0.2] and found.column("time_s")[0] == 2.0
    assert [one.metrics for one in found.evals] == [{"accuracy": 0.8, "loss": 0.5, "train_runtime": 7.0}]
    assert (found.num_nonfinite, found.num_overwritten) == (1, 2)


# --- configs ---

CONFIGS = [
    "run: a\nrecipe: r\nfingerprint: '0123'\nseed: 3\nmodel:\n  name: conv\n  width: 32\nlaunch:\n  env: {A: 'b: c'}\n",
    "run: b\nrecipe: r\nfingerprint: 1e5\nseed: 4\nmodel:\n  name: conv\n  width: 32\nlaunch:\n  env: {}\n",
    "# comment\nrun: a\nseed: 3\n",
    "run: a\nseed: 3\nseed: 4\n",
    "model: &m\n  width: 1\nother: *m\n",
    "run: a\ntext: 'over\n\n  lines'\nplan: |\n  x: 1\n  y\n\nseed: 1\n",
    '{"run": "a", "seed": 3}\n',
    "a: 1\nb:\n- 1\n- 2\nc: null\n",
    "---\nrun: a\n",
    "1: 2\nyes: no\n",
]


def test_sections_that_were_read_before_are_read_the_same() -> None:
    together = Configs()
    for text in [*CONFIGS, *reversed(CONFIGS)]:
        assert together.read(text.encode()) == Configs().read(text.encode())
    own, keys = together.read(CONFIGS[0].encode())
    assert own == {"run": "a", "recipe": "r", "fingerprint": "0123"}
    assert keys == {"seed": 3, "model.name": "conv", "model.width": 32, "launch.env": json.dumps({"A": "b: c"})}
    assert together.read(b"run: a\nseed: 3\nseed: 4\n")[1] == {"seed": 4}


WORDS = (
    "a", "lr0.1-b", "12ab", "0123456789abcdef", "1e5", "12e4", "0b1", "0b1z", "0x1f", "0o7", "010", "1_0", "1.5e+3",
    "1.e5", "yes", "No", "off5", "True", "y", "null", "NULL", "~", "nan", "a.", "a-", "-a", "2026-01-01", "1:30", "a:",
    "a#b", "a # comment", "a b", "'a'",
)  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_words_of_one_run_alone_mean_what_yaml_says(word: str) -> None:
    text = f"seed: 3\nrun: {word}\nfingerprint: 01ab\nema: null\n"
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        with pytest.raises(yaml.YAMLError):
            Configs().read(text.encode())
        return
    assert Configs().read(text.encode()) == ({"run": tree["run"], "fingerprint": "01ab"}, {"seed": 3, "ema": None})
