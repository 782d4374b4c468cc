"""A time limit that strikes in the first step: what came no further is not run again, what did is."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
TWO = {"nodes": 2, "gpus_per_node": 2}


def test_a_first_step_longer_than_the_job_is_not_run_again(tmp_path: Path) -> None:
    """No signal, the clock alone: it ends the ranks before Slurm kills them, and the verdict with them."""
    spec = {"deadline": time.time() + 5, "deadline_lead_s": 3.0}
    stuck = Launch(tmp_path / "run", TWO, spec, {"TEST_PACE": "600"}).run()
    assert stuck.status == 78, stuck.output
    assert "no step was done in the time that this job had" in stuck.last_line
    attempt = stuck.file("attempt.json")
    assert (attempt["verdict"], attempt["run_again"]) == ("stuck", False)
    retried = Launch(tmp_path / "run", TWO, spec, more={"retry": 2}).run()
    assert retried.status == 78
    assert not (tmp_path / "run/launch/2").exists()
    assert "no step was done" in retried.last_line


def test_a_warning_in_the_first_step_waits_for_it_and_the_run_goes_on(tmp_path: Path) -> None:
    def warn(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        process.send_signal(signal.SIGUSR2)

    again = Launch(tmp_path / "run", TWO, environment={"TEST_PACE": "1", "TEST_STEPS": "99"}).run(warn)
    assert again.status == 75, again.output
    attempt = again.file("attempt.json")
    assert attempt["step_first"] == 1
    assert attempt["run_again"] is True


def test_three_kills_without_a_step_end_it(tmp_path: Path) -> None:
    """Killed from outside, an attempt leaves no verdict. It may run again, though not for ever."""

    def kill(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("2 of 2 ranks joined")
        process.kill()

    keys, slow = {"gpus_per_node": 2}, {"TEST_PACE": "600"}
    for retry in (1, 2, 3):
        killed = Launch(tmp_path / "run", keys, environment=slow, more={"retry": retry}).run(kill)
        assert killed.status == -signal.SIGKILL
        assert killed.file("attempt.json", retry)["verdict"] is None
    refused = Launch(tmp_path / "run", keys, environment=slow, more={"retry": 4}).run()
    assert refused.status == 78, refused.output
    assert "3 attempts in a row (1: killed, 2: killed, 3: killed)" in refused.last_line
    anew = Launch(tmp_path / "run", keys, environment={"TEST_STEPS": "2"}).run()
    assert anew.status == 0, anew.output
