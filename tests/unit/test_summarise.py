"""Tables from trees of files whose numbers were worked out by hand."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_tree import NOW_S, Tree, evaluation, expected, has, lines, record, row

from trainpkg.__main__ import main
from trainpkg.tables.assemble import Tables
from trainpkg.tables.files import listing, records
from trainpkg.tables.render import publish, render
from trainpkg.tables.summarise import summarise

SHEET = [
    expected("done", optim__lr=0.01),
    expected("broken"),
    expected("going"),
    expected("gone"),
    expected("planned", seed=3),
    expected("other", fingerprint="new"),
]


def fill(results: Path) -> Tree:
    """One run of each kind; `stray` is not in the sheet, `.old` is no run."""
    tree = Tree(results)
    speeds = [record(10, 2.0, samples_per_second=40.0), record(20, 1.0, samples_per_second=100.0)]
    speeds += [record(30, 0.5, samples_per_second=140.0), record(40, 0.3, samples_per_second=120.0)]
    tree.finished(SHEET[0], [*speeds, evaluation(20, loss=1.1, accuracy=0.5), evaluation(40, loss=0.4, accuracy=0.9)])
    metrics = {"loss": 0.41, "accuracy": 0.91}
    tree.json("done", "evaluation.json", {"fingerprint": "f1", "step": 40, "num_samples": 360, "metrics": metrics})
    tree.config(SHEET[1]).metrics("broken", [record(10, 2.0), record(20, 1.5), record(20, 1.4, attempt=2)])
    tree.attempt("broken", 1, "again", NOW_S - 9000, 0.5, step_first=1, step_last=20, status=75)
    tree.attempt("broken", 2, "failed", NOW_S - 7000, 0.25, ranks=4, step_first=11, step_last=25, status=137)
    tree.json("broken", "launch/2/0/failure.json", {"rank": 1, "sentence": "rank 1 on node 0 (n1)\nwas killed"})
    tree.config(SHEET[2]).metrics("going", [record(10, 2.1), evaluation(10, loss=2.0, accuracy=0.2)])
    tree.attempt("going", 1, None, NOW_S - 1800, None).json("going", "lock", {"job": "71", "beat_unix_s": NOW_S - 5})
    tree.attempt("gone", 1, None, NOW_S - 7200, None).json("gone", "lock", {"job": "71", "beat_unix_s": NOW_S - 3600})
    os.utime(results / "runs/gone/lock", (NOW_S - 3600, NOW_S - 3600))
    tree.finished(expected("other", fingerprint="old"), [record(10, 9.0)])
    tree.finished(expected("stray", recipe="gpt", fingerprint="f9"), [record(10, 3.0)], ranks=1)
    tree.finished(expected(".old"), [record(10, 8.0)])
    return tree


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    fill(tmp_path)
    return summarise(tmp_path, SHEET, NOW_S)


def test_every_run_is_a_row_in_sheet_order_and_then_strays(tables: Tables) -> None:
    assert list(tables.runs["run"]) == ["done", "broken", "going", "gone", "planned", "other", "stray"]
    assert list(tables.runs["status"]) == ["finished", "failed", "running", "failed", "absent", "absent", "finished"]
    assert list(tables.runs["in_sheet"]) == [True] * 6 + [False]
    assert list(tables.runs["recipe"]) == ["digits"] * 6 + ["gpt"]


def test_finished_run_has_its_numbers(tables: Tables) -> None:
    its = row(tables.runs, "done")
    has(its, step=40, max_steps=40, final_loss=0.25, best_metric_name="accuracy", best_metric_mode="max")
    has(its, best_metric=0.9, best_step=40, world_size=2, num_nodes=1, strategy="ddp", device="cpu", memory_mb=210.0)
    has(its, eval_source="evaluate", eval_step=40, eval_loss=0.41, eval_accuracy=0.91, eval_num_samples=360.0)
    # The first record (40/s) warms up: the median is over 100, 140 and 120.
    has(its, samples_per_second=120.0, samples_per_second_per_rank=60.0, tokens_per_second=None)
    has(its, gpu_hours=2.0, train_time_s=20.0, num_attempts=1, last_verdict="finished", cause=None, notes=None)
    has(its, num_records=6, num_bad_records=0, num_nonfinite_records=0, num_overwritten_records=0)


def test_failed_run_has_the_cause_and_the_cost_of_all_attempts(tables: Tables) -> None:
    its = row(tables.runs, "broken")
    has(its, cause="rank 1 on node 0 (n1) was killed", last_verdict="failed", num_attempts=2, num_failures=1)
    has(its, gpu_hours=0.5 * 2 + 0.25 * 4, step=20, final_loss=1.4, num_records=2, num_overwritten_records=1)
    has(its, world_size=4, best_metric=None, eval_source=None)


def test_running_run_shows_where_it_stands(tables: Tables) -> None:
    its = row(tables.runs, "going")
    has(its, step=10, final_loss=2.1, eval_source="train", eval_step=10, eval_accuracy=0.2, notes=None)
    # So far: from the start to the lock's last beat.
    assert its["gpu_hours"] == pytest.approx(2 * 1795 / 3600)


def test_run_whose_launcher_vanished_has_failed(tables: Tables) -> None:
    has(row(tables.runs, "gone"), notes="no end was recorded of attempt 1", gpu_hours=2.0, cause=None)


def test_directory_of_another_fingerprint_lends_no_number(tables: Tables) -> None:
    its = row(tables.runs, "other")
    has(its, status="absent", notes="directory holds another fingerprint: old, not new", num_records=0)
    has(its, final_loss=None, gpu_hours=None, world_size=None, samples_per_second=None)
    assert "other" not in set(tables.steps["run"].to_pylist()) | set(tables.attempts["run"])


def test_steps_have_one_row_per_record_and_the_last_attempt_wins(tables: Tables) -> None:
    assert [tuple(its.values()) for its in tables.steps.select(["run", "attempt", "step", "loss"]).to_pylist()] == [
        ("done", 1, 10, 2.0), ("done", 1, 20, 1.0), ("done", 1, 30, 0.5), ("done", 1, 40, 0.3),
        ("broken", 1, 10, 2.0), ("broken", 2, 20, 1.4), ("going", 1, 10, 2.1), ("stray", 1, 10, 3.0),
    ]  # fmt: skip
    assert str(tables.steps["step"].type) == "int64"
    assert tables.steps["tokens"].null_count == len(tables.steps)


def test_evaluations_have_one_row_each(tables: Tables) -> None:
    shown = tables.evaluations[["run", "source", "step", "eval_loss", "eval_accuracy"]]
    assert [tuple(its) for its in shown.to_numpy()] == [
        ("done", "train", 20, 1.1, 0.5), ("done", "train", 40, 0.4, 0.9), ("done", "evaluate", 40, 0.41, 0.91),
        ("going", "train", 10, 2.0, 0.2),
    ]  # fmt: skip


def test_attempts_have_one_row_each(tables: Tables) -> None:
    assert list(tables.attempts["run"]) == ["done", "broken", "broken", "going", "gone", "stray"]
    its = {key: None if pd.isna(value) else value for key, value in tables.attempts.iloc[2].items()}
    has(its, attempt=2, slurm_job_id="72", host="n1", num_nodes=1, world_size=4, duration_s=900.0, gpu_hours=1.0)
    has(its, start_utc="2027-01-15T06:03:20Z", end_utc="2027-01-15T06:18:20Z", num_generations=1, num_failures=1)
    has(its, step_first=11, step_last=25, steps_gained=15, verdict="failed", exit_status=137)
    has(its, cause="rank 1 on node 0 (n1) was killed")


def test_csv_has_the_short_list_and_what_differs_and_parquet_has_all(tables: Tables) -> None:
    files = dict(render(tables))
    csv, parquet = pd.read_csv(io.BytesIO(files["runs.csv"])), pd.read_parquet(io.BytesIO(files["runs.parquet"]))
    assert {"optim.lr", "seed", "model.name", "train.global_batch"} <= set(csv.columns)
    assert not {"slurm.gpu_type", "logging.every_steps", "launch.env"} & set(csv.columns)
    assert {"slurm.gpu_type", "logging.every_steps", "launch.env"} <= set(parquet.columns)
    assert list(csv["optim.lr"]) == [0.01] + [0.001] * 6
    assert str(parquet["seed"].dtype) == "Int64"
    assert parquet["launch.env"].iloc[0] == "{}"
    names = ("attempts", "evaluations", "runs", "seeds", "steps")
    assert sorted(files) == sorted([f"{name}.{kind}" for name in names for kind in ("csv", "parquet")] + ["summary.md"])


def test_summary_names_best_failures_and_notes(tables: Tables) -> None:
    text = dict(render(tables))["summary.md"].decode()
    assert text.startswith("# Runs\n\n7 runs: 2 finished, 1 running, 2 failed, 2 absent.")
    assert "Best: **done**, accuracy 0.9 at step 40 (highest of 1)." in text
    assert "- **broken**: rank 1 on node 0 (n1) was killed" in text
    assert "- **gone**: no end was recorded of attempt 1" in text
    assert "- **other**: directory holds another fingerprint: old, not new" in text


def test_numbers_stand_beside_the_config_they_were_measured_with(tmp_path: Path) -> None:
    """Execution keys may change in the sheet after the run; identity keys cannot, or the run is absent."""
    tree = Tree(tmp_path).finished(expected("a"), [record(10, 1.0)])
    tree.config(expected("a"), launch__nodes=2)
    tables = summarise(tmp_path, [expected("a", launch__nodes=8)], NOW_S)
    assert row(tables.runs, "a")["launch.nodes"] == 2


STATUSES = {
    "nothing": ([], "absent"),
    "fresh lock, no attempt yet": (["lock"], "running"),
    "to be run again": ([("again", 0.1)], "running"),
    "restarted in a new attempt": ([("failed", 0.1), (None, None), "lock"], "running"),
    "do not run again": ([("again", 0.1), ("stop", 0.1)], "failed"),
    "says finished, no train.json": ([("finished", 0.1)], "failed"),
    "no end, no lock": ([(None, None)], "failed"),
}


@pytest.mark.parametrize(("steps", "status"), STATUSES.values(), ids=STATUSES)
def test_status(tmp_path: Path, steps: list[Any], status: str) -> None:
    tree = Tree(tmp_path).config(expected("a"))
    for number, step in enumerate(steps, start=1):
        if step == "lock":
            tree.raw("a", "lock", b"")
            os.utime(tmp_path / "runs/a/lock", (NOW_S - 80, NOW_S - 80))
        else:
            tree.attempt("a", number, step[0], NOW_S - 7200, step[1])
    its = row(summarise(tmp_path, [expected("a")], NOW_S).runs, "a")
    assert its["status"] == status
    assert steps != [("finished", 0.1)] or its["notes"] == "attempt 1 says finished, but train.json does not"


def test_without_any_run_all_tables_are_still_written(tmp_path: Path) -> None:
    tables = summarise(tmp_path / "none", [], NOW_S)
    assert dict(render(tables))["summary.md"].decode().startswith("# Runs\n\n0 runs.")
    assert list(pd.read_csv(io.BytesIO(dict(render(tables))["runs.csv"])).columns)[:4] == [
        "run",
        "recipe",
        "status",
        "in_sheet",
    ]


def test_overlapping_attempts_and_generations() -> None:
    """Attempt 2 went back to step 10; its second generation went back to step 20. Lines of the loser may come later."""
    content = lines([
        record(10, 1.0), record(20, 2.0), record(30, 3.0), record(40, 4.0),
        record(20, 5.0, attempt=2), record(30, 6.0, attempt=2), record(30, 7.0, attempt=2, generation=1),
        record(20, 8.0, attempt=1), evaluation(20, loss=1.0), evaluation(20, attempt=2, loss=2.0),
    ])  # fmt: skip
    found = records.parse(content)
    assert list(found.column("loss")) == [1.0, 5.0, 7.0, 4.0]
    assert [one.metrics["loss"] for one in found.evals] == [2.0]
    assert found.num_overwritten == 5
    assert list(found.column("step")[found.last_generation()]) == [30.0]


@contextlib.contextmanager
def any_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[None]:
    """File systems that list names in another order."""
    scandir, shuffle = os.scandir, random.Random(seed).shuffle

    def shuffled(path: Any) -> Any:
        found = list(scandir(path))
        shuffle(found)
        return contextlib.nullcontext(found)

    with monkeypatch.context() as patch:
        patch.setattr(listing.os, "scandir", shuffled)
        yield


def test_same_files_give_the_same_bytes_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    tree = Tree(tmp_path)
    for number in range(12):
        tree.finished(expected(f"extra{number}", recipe=f"r{number % 3}"), [record(10, 1.0)])
    before = dict(render(summarise(tmp_path, SHEET, NOW_S)))
    for seed in range(3):
        with any_order(monkeypatch, seed):
            assert dict(render(summarise(tmp_path, SHEET, NOW_S))) == before


def test_publish_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, [("runs.csv", b"old")])

    def full(self: Path, content: bytes) -> int:
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "write_bytes", full)
        publish(tmp_path, [("runs.csv", b"new")])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"runs.csv": b"old"}


def test_subcommand_writes_tables_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.tsv").write_text("run\trecipe\toptim.lr\na\tdigits\t1e-2\nb\tdigits\t\n")
    (tmp_path / "digits.yaml").write_text(
        "task: images\nmodel: {name: conv}\ndata: {name: digits}\ntrain: {max_steps: 40, global_batch: 64}\n"
    )
    results = tmp_path / "results"
    config = {"results_dir": str(results), "sheet": str(tmp_path / "runs.tsv"), "recipes": str(tmp_path)}
    assert main(["summarise", "--config-json", json.dumps(config)]) == 0
    assert capsys.readouterr().out == f"2 runs: 2 absent: {results}/tables/summary.md\n"
    assert sorted(path.name for path in (results / "plots").iterdir()) == [
        "evaluation_over_steps.svg", "loss_over_data.svg", "loss_over_steps.svg", "loss_over_time.svg", "memory.svg",
        "restarts.svg", "sweep.svg", "throughput_over_steps.svg", "throughput_over_world_size.svg",
    ]  # fmt: skip
    table = pd.read_csv(results / "tables/runs.csv")
    assert list(table["optim.lr"]) == [0.01, 0.001]
    assert main(["summarise", "--config-json", json.dumps(config), "--out", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere/tables/runs.csv").read_bytes() == (results / "tables/runs.csv").read_bytes()
