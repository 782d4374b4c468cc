"""Every kind of damage to the files of runs, and what the tables make of it: counted, described, never fatal."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from run_tree import NOW_S, Tree, evaluation, expected, has, lines, record, row

from trainpkg.tables.assemble import Tables
from trainpkg.tables.render import render
from trainpkg.tables.summarise import summarise

GOOD = lines([record(10, 2.0)])
SECOND = "metrics.jsonl: 1 bad, first in line 2"
TORN = f"{SECOND}, the last one torn"
AT_20 = "metrics.jsonl: loss not finite in 1, first at step 20"
# Content of metrics.jsonl -> records kept, bad, not finite, note.
DAMAGED: dict[str, tuple[bytes, int, int, int, str | None]] = {
    "empty": (b"", 0, 0, 0, "metrics.jsonl is empty"),
    "blank lines": (b"\n\n" + GOOD + b"\n", 1, 0, 0, None),
    "no newline at the end": (GOOD.rstrip(), 1, 0, 0, None),
    "torn last line": (GOOD + b'{"kind":"train","ste', 1, 1, 0, TORN),
    "appended to a torn line": (b'{"kind":"train","st' + GOOD, 1, 1, 0, "metrics.jsonl: 1 bad, first in line 1"),
    "wrong encoding": (GOOD + b'{"kind":"train","step":20,"x":"\xe9"}\n', 1, 1, 0, SECOND),
    "utf-16": (GOOD.decode().encode("utf-16"), 0, 2, 0, "metrics.jsonl: 2 bad, first in line 1, the last one torn"),
    "zero bytes of a crash": (GOOD + b"\0" * 64, 1, 1, 0, TORN),
    "no object": (GOOD + b"[1]\n3\nnull\n", 1, 3, 0, "metrics.jsonl: 3 bad, first in line 2"),
    "html": (b"<html>\n" + GOOD, 1, 1, 0, "metrics.jsonl: 1 bad, first in line 1"),
    "deeply nested": (GOOD + b"[" * 100_000 + b"\n", 1, 1, 0, SECOND),
    "unknown kind": (GOOD + b'{"kind":"x","step":1}\n', 1, 1, 0, SECOND),
    "no step": (GOOD + b'{"kind":"train"}\n', 1, 1, 0, SECOND),
    "step is true": (GOOD + b'{"kind":"train","step":true}\n', 1, 1, 0, SECOND),
    "step below zero": (GOOD + b'{"kind":"train","step":-1}\n', 1, 1, 0, SECOND),
    "step beyond float": (GOOD + b'{"kind":"train","step":1' + b"0" * 400 + b"}\n", 1, 1, 0, SECOND),
    "number as text": (GOOD + lines([record(20, "1.5")]), 1, 1, 0, SECOND),
    "attempt as NaN": (GOOD + lines([record(20, 1.5) | {"attempt": math.nan}]), 1, 1, 0, SECOND),
    "metrics no object": (GOOD + lines([evaluation(1) | {"metrics": 3}]), 1, 1, 0, SECOND),
    "loss NaN": (GOOD + lines([record(20, math.nan)]), 2, 0, 1, AT_20),
    "loss infinite": (GOOD + lines([record(20, math.inf)]), 2, 0, 1, AT_20),
    "loss null": (GOOD + lines([record(20, None)]), 2, 0, 1, AT_20),
    "NaN overwritten": (lines([record(10, math.nan), record(10, 1.0, attempt=2)]), 1, 0, 0, None),
    "clock back": (GOOD + lines([record(20, 1.0, time_s=1.0)]), 2, 0, 0, "metrics.jsonl: time_s goes back at step 20"),
}  # fmt: skip


DOCUMENTS = {
    "empty": b"", "torn": b'{"status": "fin', "list": b"[]", "latin-1": b'{"status": "\xe9"}', "null": b"null",
    "nested": b"[" * 100_000,
}  # fmt: skip
NAMES = ("train.json", "evaluation.json", "launch/1/attempt.json", "launch/1/0/plan.json", "launch/1/0/failure.json",
         "config.yaml", "lock")  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """All damage at once, one run each: a damaged run must not touch the others either."""
    results = tmp_path_factory.mktemp("damaged")
    tree, sheet = Tree(results), []
    for number, (content, *_) in enumerate(DAMAGED.values()):
        sheet.append(expected(f"metrics{number}"))
        tree.config(sheet[-1]).raw(f"metrics{number}", "metrics.jsonl", content)
    for name in NAMES:
        for kind, content in DOCUMENTS.items():
            sheet.append(expected(f"{Path(name).stem}-{kind}"))
            tree.finished(sheet[-1], [record(10, 1.0)]).raw(sheet[-1].run, name, content)
    found = summarise(results, sheet, NOW_S)
    assert set(dict(render(found))) >= {"runs.csv", "summary.md"}
    return found


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_metrics(tables: Tables, kind: str) -> None:
    _, kept, bad, nonfinite, note = DAMAGED[kind]
    its = row(tables.runs, f"metrics{list(DAMAGED).index(kind)}")
    has(its, num_records=kept, num_bad_records=bad, num_nonfinite_records=nonfinite, notes=note)


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_damaged_document_costs_what_stood_in_it_and_no_more(tables: Tables, name: str, kind: str) -> None:
    its = row(tables.runs, f"{Path(name).stem}-{kind}")
    # Without train.json the attempt's own word is not taken.
    has(its, status="failed" if name == "train.json" else "finished", num_records=1, samples_per_second=128.0)
    # A lock says nothing once its run has finished.
    assert name == "lock" or f"{Path(name).name} is unreadable" in its["notes"]


def test_directories_in_place_of_files_and_odd_names_are_never_fatal(tmp_path: Path) -> None:
    tree = Tree(tmp_path).raw("a", "metrics.jsonl/x", b"").raw("a", "train.json/x", b"").raw("a", "launch", b"")
    tree.raw("b", "launch/two/attempt.json", b"{}").raw("b", "launch/1/x/plan.json", b"{}")
    (tmp_path / "runs/c").write_bytes(b"")
    os.mkdir(os.fsencode(tmp_path / "runs") + b"/\xff")  # noqa: PTH102  (bytes that are no UTF-8)
    tables = summarise(tmp_path, [expected("a"), expected("b"), expected("c")], NOW_S)
    dict(render(tables))
    assert "metrics.jsonl is unreadable (IsADirectoryError)" in row(tables.runs, "a")["notes"]
    assert row(tables.runs, "c")["notes"] == "no directory but a file"
    assert len(tables.runs) == 4


def test_output_that_snakemake_deleted_is_read_from_its_copy(tmp_path: Path) -> None:
    tree = Tree(tmp_path).finished(expected("a"), [record(10, 1.0)])
    (tmp_path / "runs/a/train.json").rename(tmp_path / "runs/a/finished.json")
    tree.attempt("a", 2, "failed", NOW_S - 3600, 0.1)
    has(row(summarise(tmp_path, [expected("a")], NOW_S).runs, "a"), status="finished", final_loss=0.25)


def test_names_of_others_never_hide_columns_of_ours(tmp_path: Path) -> None:
    tree = Tree(tmp_path).finished(
        expected("a"), [evaluation(1) | {"metrics": {"source": 1.5, "step": 2.5, "loss": 3.0}}]
    )
    odd = expected("odd", step="x", best="y", ranks="z", eval_loss="w", status="v", device=[1])
    tree.config(odd, strategy="a|b").json(
        "odd", "train.json", {"final": 3, "best": [], "world_size": "two", "steps": {}}
    )
    tree.json("odd", "evaluation.json", {"step": "x", "metrics": {"source": 1, "run": 2}})
    tables = summarise(tmp_path, [expected("a")], NOW_S)
    has(row(tables.runs, "a"), eval_source="train", eval_step=1, eval_loss=3.0, step=40)
    has(row(tables.runs, "odd"), eval_source="evaluate", eval_step=None, eval_run=2.0, step=None, world_size=None)
    assert "a\\|b" in dict(render(tables))["summary.md"].decode()


def test_halves_of_characters_do_not_end_up_in_files(tmp_path: Path) -> None:
    tree = Tree(tmp_path).finished(expected("a"), [evaluation(1, **{"\ud800": 1.0})], device="\ud800")
    tree.json("a", "evaluation.json", {"metrics": {"\ud801": 1}})
    tree.attempt("a", 2, "failed", NOW_S - 7200, 0.1, cause="\ud802 died")
    dict(render(summarise(tmp_path, [expected("a")], NOW_S)))


def test_numbers_beyond_all_measure_are_never_fatal(tmp_path: Path) -> None:
    """In configs, documents, and as names of directories."""
    huge = 10**400
    tree = Tree(tmp_path).config(expected("a", seed=huge, optim__lr=math.inf, model__width=2**63))
    tree.finished(expected("b", seed=1), [record(10, 1.0)], steps=huge, world_size=huge, num_parameters=2**63)
    tree.attempt("b", 1, "finished", 1e300, 1e300, step_first=huge, status=huge, restarts=2**70)
    tree.raw("b", f"launch/{10**30}/attempt.json", b"{}").raw("b", "launch/007/attempt.json", b"{}")
    tree.json("b", "evaluation.json", {"step": huge, "num_samples": huge, "metrics": {"loss": huge, "accuracy": 1e300}})
    tables = summarise(tmp_path, [expected("a"), expected("b")], NOW_S)
    dict(render(tables))
    has(row(tables.runs, "b"), status="finished", step=None, num_parameters=None, num_attempts=1, eval_accuracy=1e300)
    assert row(tables.runs, "a")["seed"] == str(huge)
