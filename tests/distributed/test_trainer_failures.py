"""The real trainer under the launcher, and everything that can happen to one of its ranks: named, ended, in seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]
TWO = {"nodes": 2, "gpus_per_node": 1}
ONE = {"nodes": 1, "gpus_per_node": 2}  # where the node of a rank changes nothing: half as many imports of torch
TRAINER = {"entry": "tests.distributed.trainers:main", "preload": ["torch", "torch._dynamo", "trainpkg.train"]}


def launch(
    folder: Path, fault: str, config: dict[str, Any] | None = None, generations: str = "0", **keys: Any
) -> Launch:
    """A training of 30 steps that saves every 10: two ranks, on two simulated nodes where `keys` say nothing else."""
    sections = {"train": {"max_steps": 30, "global_batch": 16}, "checkpoint": {"every_steps": 10}}
    sections |= {"logging": {"every_steps": 5, "eval_every_steps": 30}, "model": {"name": "conv", "width": 8}}
    for section, more in (config or {}).items():
        sections[section] = sections.get(section, {}) | more
    return Launch(folder / "run", TWO | keys, TRAINER, {"TEST_FAULT": fault}, {"config": sections}, 240.0)


def rank_log(launch: Launch, rank: int, generation: int = 0) -> str:
    path = launch.folder / f"launch/1/{generation}/rank-{rank}.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.failure("F096")
def test_a_rank_that_hangs_in_a_step_is_named_with_its_stack(tmp_path: Path) -> None:
    failed = launch(tmp_path, "in_step:1:12:hang", progress_timeout_s=3.0).run()
    assert failed.status == 1, failed.output
    assert "rank 1 on node 1 (sim1) seems to keep the others waiting: no rank has done a step for" in failed.last_line
    assert "it is in _hang (distributed/trainers.py:" in failed.last_line
    told = failed.file("0/failure.json")
    assert (told["kind"], told["rank"], told["step"]) == ("no_progress", 1, 12)
    assert {rank for group in told["stacks"] for rank in group["ranks"]} == {0, 1}
    assert "Current thread" in rank_log(failed, 0), "the stacks of all threads are in the logs"


@pytest.mark.failure("F096")
def test_a_wedged_collective_names_the_rank_that_takes_no_part(tmp_path: Path) -> None:
    failed = launch(tmp_path, "in_step:1:12:stop", collective_timeout_s=2.0).run()
    assert failed.status == 1, failed.output
    for words in ("rank 1 on node 1 (sim1) took no part in a collective operation", "its process is stopped",
                  "(launch.collective_timeout_s)", "1 other rank lost its peer"):  # fmt: skip
        assert words in failed.last_line


@pytest.mark.failure("F096")
def test_a_rank_that_somebody_stops_is_named_before_any_timeout_of_torch(tmp_path: Path) -> None:
    failed = launch(tmp_path, "in_step:1:12:stop", heartbeat_timeout_s=5.5).run()
    assert failed.status == 1, failed.output
    assert "rank 1 on node 1 (sim1) is stopped (SIGSTOP) for 5 s" in failed.output
    assert "rank 1 on node 1 (sim1) has done nothing for" in failed.last_line
    assert "(launch.heartbeat_timeout_s); its process is stopped; the 1 other(s) wait" in failed.last_line


def test_a_rank_that_hangs_before_it_joins_is_named(tmp_path: Path) -> None:
    failed = launch(tmp_path, "before_join:1:hang", init_timeout_s=2.0, **ONE).run()
    assert failed.status == 1, failed.output
    assert "rank 1 on node 0 (sim0) did not join the process group" in failed.last_line
    assert "it is in _hang (distributed/trainers.py:" in failed.last_line


@pytest.mark.failure("F098")
def test_a_collective_inside_a_branch_of_rank_0_is_named_at_the_end(tmp_path: Path) -> None:
    failed = launch(tmp_path, "alone_at_the_end", end_timeout_s=2.0).run()
    assert failed.status == 1, failed.output
    assert (
        "rank 0 on node 0 (sim0) did not come to the end of the run, where 1 other(s) wait since 2 s"
        in failed.last_line
    )
    assert "called from wrapped (distributed/trainers.py:" in failed.last_line


def test_a_rank_that_leaves_early_is_named(tmp_path: Path) -> None:
    failed = launch(tmp_path, "in_step:1:12:leave", **ONE).run()
    assert failed.status == 1, failed.output
    assert "rank 1 on node 0 (sim0) raised SystemExit at step 12" in failed.last_line


@pytest.mark.failure("F099")
def test_a_save_that_outlasts_the_timeout_of_steps_is_no_failure(tmp_path: Path) -> None:
    config = {"checkpoint": {"every_steps": 30, "timeout_s": 60.0}}
    keys = {"collective_timeout_s": 1.5, "progress_timeout_s": 2.0}
    done = launch(tmp_path, "slow_publish:4", config, **keys, **ONE).run()
    assert done.status == 0, done.output
    assert "of at most 60 s" in rank_log(done, 0)


@pytest.mark.failure("F099")
def test_a_save_that_outlasts_its_own_timeout_is(tmp_path: Path) -> None:
    config = {"checkpoint": {"every_steps": 30, "timeout_s": 1.5}}
    failed = launch(tmp_path, "slow_write:1:600", config, collective_timeout_s=1.0, **ONE).run()
    assert failed.status == 1, failed.output
    assert "rank 1 on node 0 (sim0) took no part" in failed.last_line
    assert "slow_write" in failed.last_line or "wrapped (distributed/trainers.py" in failed.last_line


@pytest.mark.failure("F092")
def test_an_end_that_was_asked_for_waits_for_a_running_save(tmp_path: Path) -> None:
    def interrupt(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: "writing begins" in rank_log(launch, 1), "a save")
        process.send_signal(signal.SIGINT)

    ended = launch(tmp_path, "slow_write:1:3", stop_grace_s=0.2, save_grace_s=30.0).run(interrupt)
    assert ended.status == 130, ended.output
    assert "a checkpoint is being saved: its ranks have 30 s" in ended.output
    assert (ended.folder / "checkpoints/step-00000010/manifest.json").exists()


@pytest.mark.failure("F092")
def test_two_requests_do_not_wait_for_a_save(tmp_path: Path) -> None:
    def interrupt(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: "writing begins" in rank_log(launch, 1), "a save")
        process.send_signal(signal.SIGINT)
        launch.wait_for_line("a checkpoint is being saved")
        process.send_signal(signal.SIGINT)

    ended = launch(tmp_path, "slow_write:1:600", save_grace_s=500.0, **ONE).run(interrupt)
    assert ended.status == 130, ended.output


@pytest.mark.failure("F092")
def test_what_all_ranks_have_written_is_published_though_one_of_them_dies(tmp_path: Path) -> None:
    def kill_rank_1(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: "publishing begins" in rank_log(launch, 0), "publishing")
        os.kill(process_of_rank(launch, 1), signal.SIGKILL)

    done = launch(tmp_path, "slow_publish:2", max_restarts=1).run(kill_rank_1)
    assert done.status == 0, done.output
    assert "rank 1 on node 1 (sim1) was killed by SIGKILL at step 10" in done.output
    assert "goes on from step-00000010" in rank_log(done, 0, 1)


@pytest.mark.failure("F092")
def test_a_save_that_a_dead_rank_takes_part_in_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    done = launch(tmp_path, "in_save:1:10:kill", max_restarts=1, save_grace_s=500.0, **ONE).run()
    assert done.status == 0, done.output
    assert time.monotonic() - began < 240
    assert "starts at step 0" in rank_log(done, 0, 1)
    assert not list((done.folder / "checkpoints").glob(".tmp-*"))


def process_of_rank(launch: Launch, rank: int, generation: int = 0) -> int:
    """The process whose output is the rank's log."""
    log = str(launch.folder / f"launch/1/{generation}/rank-{rank}.log")
    for pid in launch.processes():
        try:
            if str(Path(f"/proc/{pid}/fd/1").readlink()) == log:
                return pid
        except OSError:
            continue
    raise AssertionError(f"no process writes {log}")


@pytest.mark.failure("F085")
def test_a_stop_is_heard_within_an_evaluation_which_is_made_up_for(tmp_path: Path) -> None:
    def ask(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: '"step": 10,' in records(launch), "step 10")
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)

    config = {"logging": {"eval_every_steps": 10}, "evaluate": {"batch": 4}}  # 45 passes
    stopped = launch(tmp_path, "slow_evaluation:1.0", config, **ONE).run(ask)
    assert stopped.status == 75, stopped.output
    assert "stopped and saved at step 10" in stopped.last_line
    assert "stops at step 10: SIGUSR2, honoured after" in rank_log(stopped, 0)
    assert '"kind": "eval"' not in records(stopped)
    again = launch(tmp_path, "none", config, **ONE).run()
    assert again.status == 0, again.output
    evaluated = [json.loads(line)["step"] for line in records(again).splitlines() if '"eval"' in line]
    assert evaluated == [10, 20, 30]


def records(launch: Launch) -> str:
    path = launch.folder / "metrics.jsonl"
    return path.read_text() if path.exists() else ""


def test_memory_that_no_machine_has_is_told_with_its_size(tmp_path: Path) -> None:
    failed = launch(tmp_path, "in_step:1:12:ask", **ONE).run()
    assert failed.status == 1, failed.output
    assert "rank 1 on node 0 (sim0) ran out of memory at step 12 (RuntimeError, 4503599627370496 bytes asked for)" in (
        failed.last_line
    )
    assert failed.file("0/failure.json")["kind"] == "oom"
