"""`status`: each state from the files that make it, the queue's say in it, and what is read when."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.run_tree import NOW_S, Tree, evaluation, lines, record
from trainpkg import sheet
from trainpkg.__main__ import main
from trainpkg.launch.slurm import queue
from trainpkg.launch.slurm.queue import QueuedJob, parse
from trainpkg.status import command, look
from trainpkg.status.look import Observer, Standing

RECIPE = """\
task: images
model: {name: conv, width: 8}
data: {name: digits}
train: {max_steps: 100, global_batch: 8}
launch: {device: cpu}
"""
RUNS = ("trains", "starts", "waits", "stops", "fails", "dies", "nothing", "done", "other")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """One run in each state."""
    monkeypatch.chdir(tmp_path)
    Path("config/recipes").mkdir(parents=True)
    Path("config/recipes/r.yaml").write_text(RECIPE)
    Path("config/config.yaml").write_text("{}\n")
    Path("config/runs.tsv").write_text("run\trecipe\n" + "".join(f"{run}\tr\n" for run in RUNS))
    fingerprint = sheet.load({}).runs["done"].fingerprint()
    tree = Tree(Path("results"))
    beat = {"beat_unix_s": NOW_S - 2, "job": "41"}
    old = [record(step, 3.0, time_s=step * 9.0) for step in range(10, 60, 10)]
    new = [record(step, 2.0 - step / 100, attempt=2, time_s=100 + step / 2) for step in range(40, 60, 10)]
    tree.attempt("trains", 1, "again", NOW_S - 9000, 1.0).attempt("trains", 2, None, NOW_S - 60, None)
    tree.metrics("trains", [*old, *new, evaluation(50, attempt=2, accuracy=0.5)], b'{"kind": "tr')
    tree.json("trains", "lock", beat)
    tree.attempt("stops", 1, "again", NOW_S - 9000, 1.0).metrics("stops", [record(10, 1.0)])
    tree.attempt("waits", 1, "again", NOW_S - 9000, 1.0, slurm_job_id="43").metrics("waits", [record(10, 1.0)])
    tree.attempt("fails", 1, "failed", NOW_S - 9000, 1.0, cause="rank 3 was killed")
    tree.attempt("dies", 1, None, NOW_S - 9000, None)
    tree.json("done", "train.json", {"status": "finished", "fingerprint": fingerprint})
    tree.metrics("done", [record(100, 0.5)])
    tree.json("other", "train.json", {"status": "finished", "fingerprint": "0123"})
    return tree


JOBS = [
    QueuedJob("41", "RUNNING", "None", "1:03", "1:00:00", "rule_train_wildcards_trains"),
    QueuedJob("42", "RUNNING", "None", "0:03", "1:00:00", "rule_train_wildcards_starts"),
    QueuedJob("43", "PENDING", "Priority", "0:00", "1:00:00", "rule_train_wildcards_waits"),
    QueuedJob("44", "PENDING", "Resources", "0:00", "1:00:00", "rule_train_wildcards_nothing"),
]


def seen(jobs: list[QueuedJob] | None) -> dict[str, Standing]:
    return {one.run: one for one in Observer(sheet.load({})).look(jobs, NOW_S)}


def test_every_state(tree: Tree) -> None:
    states = {run: one.state for run, one in seen(JOBS).items()}
    assert states == {
        "trains": "running", "starts": "starting", "waits": "queued", "stops": "stopped", "fails": "failed",
        "dies": "failed", "nothing": "queued", "done": "finished", "other": "absent",
    }  # fmt: skip
    states = {run: one.state for run, one in seen(None).items()}
    assert states == {
        "trains": "running", "starts": "absent", "waits": "stopped", "stops": "stopped", "fails": "failed",
        "dies": "failed", "nothing": "absent", "done": "finished", "other": "absent",
    }, "without Slurm the files say it"  # fmt: skip


def test_numbers_are_those_of_the_newest_attempt(tree: Tree) -> None:
    one = seen(JOBS)["trains"]
    assert (one.step, one.max_steps, one.loss, one.rate, one.unit) == (50, 100, 1.5, 128.0, "samples")
    assert one.eta_s == 25.0, "half a second per step, as the newest attempt takes"
    assert (one.job, one.job_words) == ("41", "RUNNING 1:03 of 1:00:00")
    assert seen([])["trains"].job_words == "not in the queue"
    assert seen(JOBS)["waits"].eta_s is None
    assert seen(JOBS)["fails"].verdict == "rank 3 was killed"
    assert "no end was recorded of attempt 1" in seen(JOBS)["dies"].verdict
    assert "other keys" in seen(JOBS)["other"].verdict


def test_of_a_long_record_the_end_is_read(tree: Tree) -> None:
    many = [record(step, 1.0, attempt=2, time_s=step / 4) for step in range(1, 5000)]
    tree.raw("trains", "metrics.jsonl", lines(many))
    one = seen(JOBS)["trains"]
    assert one.step == 4999
    assert (tree.results / "runs/trains/metrics.jsonl").stat().st_size > 40 * look.TAIL_BYTES


def test_what_is_finished_is_not_read_again_and_what_changed_is(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(sheet.load({}))
    observer.look(None, NOW_S)
    read: list[str] = []
    real = look._json
    monkeypatch.setattr(look, "_json", lambda path: (read.append(str(path)), real(path))[1])
    tree.metrics("trains", [record(90, 0.1, attempt=2)])
    again = {one.run: one for one in observer.look(None, NOW_S)}
    assert again["trains"].step == 90
    assert not [path for path in read if "/done/" in path]
    (tree.results / "runs/done/train.json").unlink()
    assert {one.run: one.state for one in observer.look(None, NOW_S)}["done"] == "absent"


def test_runs_that_share_a_job_are_found_by_it(tree: Tree) -> None:
    Path("config/recipes/r.yaml").write_text(RECIPE + "slurm: {runs_per_job: 3}\n")
    job = QueuedJob("50", "PENDING", "Priority", "", "", "rule_train-0-2_train")
    assert {run: one.state for run, one in seen([job]).items() if one.job == "50"} == dict.fromkeys(
        ("nothing", "other"), "queued"
    )


def test_a_module_s_jobs_and_results_are_found(tree: Tree) -> None:
    Path("config/recipes/r.yaml").write_text(RECIPE + "slurm: {runs_per_job: 3}\n")
    Path("results").rename("deep")
    loaded = sheet.load({})
    jobs = [QueuedJob("50", "PENDING", "Priority", "", "", "rule_train-0-2_training_train"),
            QueuedJob("51", "PENDING", "Priority", "", "", "rule_my_own_train_wildcards_starts")]  # fmt: skip
    found = {one.run: one for one in Observer(loaded, Path("deep")).look(jobs, NOW_S)}
    assert (found["trains"].state, found["nothing"].job, found["starts"].job) == ("running", "50", "51")
    for comment in ("rule_train_wildcards_my_train", "rule_train-0-2_train"):
        assert re.sub(look.OF_A_MODULE, r"rule_\1", comment) == comment


def test_squeue_s_lines() -> None:
    assert parse("41|PENDING|Resources|0:00|1:00|a|b\nslurm_load_jobs error\n") == [
        QueuedJob("41", "PENDING", "Resources", "0:00", "1:00", "a|b")
    ]
    assert QueuedJob("1", "COMPLETING", "None").words == "COMPLETING"


def test_one_call_of_squeue_whatever_the_watch(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    monkeypatch.setattr(queue, "own_jobs", lambda: calls.append(time.monotonic()) or JOBS)
    see = command.watcher(Observer(sheet.load({})))
    assert [see()[1] for _ in range(3)] == [True] * 3
    assert len(calls) == 1


def shown(standings: list[Standing], **how: Any) -> str:
    text = io.StringIO()
    asked = {"states": None, "max_rows": None, "queue_answers": True, **how}
    Console(file=text, width=command.PLAIN_WIDTH).print(command.render(standings, **asked))
    return text.getvalue()


def test_the_table_shows_first_what_moves_or_failed(tree: Tree) -> None:
    standings = list(seen(JOBS).values())
    text = shown(standings)
    assert text.startswith("9 runs: 1 running, 1 starting, 2 queued, 1 stopped, 2 failed, 1 absent, 1 finished")
    rows = [line.split()[0] for line in text.splitlines()[2:]]
    assert rows == ["trains", "starts", "waits", "nothing", "stops", "fails", "dies", "other", "done"]
    assert "50/100" in text and "25 s" in text and "PENDING (Priority)" in text
    few = shown(standings, max_rows=2, queue_answers=False)
    assert "and 7 more: --all, --state" in few and "no answer from squeue" in few and "fails" not in few
    assert "trains" not in shown(standings, states=["failed"])


def test_the_command(tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(queue, "own_jobs", lambda: None)
    assert main(["status", "--json", "--state", "finished"]) == 0
    [one] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["run"], one["step"], one["loss"]) == ("done", 100, 0.5)
    monkeypatch.setattr(command.time, "sleep", raises_after(2))
    assert main(["status", "--watch", "1"]) == 0
    assert capsys.readouterr().out.count("9 runs:") >= 1
    assert main(["status", "--watch", "0"]) == 2


def raises_after(rounds: int) -> Any:
    left = [rounds]

    def sleep(_: float) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    return sleep


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.2, "0 s"), (61, "1 min 01 s"), (3700, "1 h 01 min"), (100_000, "1 d 03 h"), (-5, "0 s")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert command.duration(seconds) == text
