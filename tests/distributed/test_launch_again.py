"""Restarts in place, stops at a step boundary, and whether to run again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
TWO = {"nodes": 2, "gpus_per_node": 2}
LONG = {"TEST_STEPS": "2000"}


@pytest.mark.parametrize("bad", ["kill:3:4:0", "error:0:3:0", "killzygote:2:3:0", "exit0:1:2:0"])
def test_restart_in_place_goes_on_from_the_last_save(tmp_path: Path, bad: str) -> None:
    environment = {"TEST_BAD": bad, "TEST_STEPS": "12"}
    done = Launch(tmp_path / "run", TWO | {"max_restarts": 1}, environment=environment).run()
    assert done.status == 0, done.output
    assert "restart 1 of 1" in done.output
    first, second = done.file("0/plan.json"), done.file("1/plan.json")
    assert first["master_port"] != second["master_port"]
    assert done.file("attempt.json")["generations"] == 2
    assert done.file("0/failure.json")["kind"]
    assert not (tmp_path / "run/launch/1/1/failure.json").exists()
    assert "from step 0" not in (tmp_path / "run/launch/1/1/rank-0.log").read_text()


def test_restarts_run_out(tmp_path: Path) -> None:
    environment = LONG | {"TEST_BAD": "kill:1:3"}
    failed = Launch(tmp_path / "run", TWO | {"max_restarts": 0}, environment=environment).run()
    assert failed.status == 137


def test_the_same_exception_at_the_same_step_is_not_tried_for_ever(tmp_path: Path) -> None:
    environment = LONG | {"TEST_BAD": "error:0:2"}
    failed = Launch(tmp_path / "run", {"gpus_per_node": 2, "max_restarts": 5}, environment=environment).run()
    assert failed.status == 1, failed.output
    assert failed.file("attempt.json")["generations"] == 2
    assert "failed the same way at the same step" in failed.last_line
    assert failed.file("attempt.json")["run_again"] is False
    retried = Launch(tmp_path / "run", environment=environment, more={"retry": 2}).run()
    assert retried.status == 78, retried.output
    assert not (tmp_path / "run/launch/2").exists()
    anew = Launch(tmp_path / "run", environment={"TEST_STEPS": "3"}).run()  # a first try always tries
    assert anew.status == 0


@pytest.mark.parametrize(("target", "signum"), [("launch", signal.SIGTERM), ("node", signal.SIGUSR2)])
@pytest.mark.failure("F082")
@pytest.mark.failure("F088")
def test_a_stop_request_anywhere_stops_all_and_asks_to_be_run_again(tmp_path: Path, target: str, signum: int) -> None:
    def ask(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("step 1 of")
        pid = process.pid if target == "launch" else launch.processes("node", "--node-rank=1")[0]
        os.kill(pid, signum)

    stopped = Launch(tmp_path / "run", TWO, environment=LONG).run(ask)
    assert stopped.status == 75, stopped.output
    assert "to be run again" in stopped.last_line
    second = Launch(tmp_path / "run", TWO, environment={"TEST_STEPS": str(_saved(tmp_path) + 2)}).run()
    assert second.status == 0
    assert second.file("attempt.json", 2)["step_first"] > 1


def _saved(tmp_path: Path) -> int:
    return int((tmp_path / "run/saved").read_text())


@pytest.mark.failure("F077")
@pytest.mark.failure("F089")
def test_a_warning_signal_to_every_process_kills_no_helper(tmp_path: Path) -> None:
    def signal_all(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: launch.processes("trainpkg.launch.start.zygote"), "a fork server")
        for _ in range(40):  # before, while and after the ranks are born
            for pid in launch.processes():
                if pid != process.pid and "zygote" in _command(pid):
                    os.kill(pid, signal.SIGUSR2)
            time.sleep(0.01)
        launch.wait_for_line("step 1 of")
        for pid in launch.processes("node"):
            os.kill(pid, signal.SIGUSR2)

    stopped = Launch(tmp_path / "run", TWO, environment=LONG).run(signal_all)
    assert stopped.status in (75, 78), stopped.output


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_stop_before_the_first_step_is_not_run_again(tmp_path: Path) -> None:
    def ask(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: launch.processes("node", "--node-rank=0"), "node 0")
        launch.wait_for(lambda: "starting" in launch.log.read_text() or launch.log.read_text(), "a line")
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)

    stopped = Launch(tmp_path / "run", TWO, environment=LONG | {"TEST_PACE": "0.5"}).run(ask)
    assert stopped.status in (75, 78), stopped.output


def test_the_clock_alone_ends_a_job_in_time(tmp_path: Path) -> None:
    """The limit is an hour away, and the first save claims to have taken half of one: it is time after that step."""
    spec = {"deadline": time.time() + 3600, "deadline_lead_s": 60.0}
    stopped = Launch(tmp_path / "run", TWO, spec, LONG | {"TEST_SAVE_S": "1800"}).run()
    assert stopped.status == 75, stopped.output
    assert "time limit is near" in stopped.output
    assert "ahead instead of 60 s, since a save takes 1800 s" in stopped.output
