"""Steps that `launch` starts: what srun says is kept, and a step that never comes about ends by name."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainpkg.launch.head.steps import step
from trainpkg.launch.head.steps.step import Step

BUSY = "echo 'srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)' >&2"


def run_step(script: str, until: Callable[[Step], bool], log: Path) -> tuple[Step, str, list[str]]:
    """The step of this script, what `ended` says once `until` holds, and all lines that were shown."""
    said: list[str] = []

    async def run() -> tuple[Step, str]:
        running = Step(["sh", "-c", script], os.environ, said.append, log)
        try:
            end = time.monotonic() + 20
            while not until(running):
                assert time.monotonic() < end, said
                await asyncio.sleep(0.01)
            return running, running.ended()
        finally:
            await asyncio.to_thread(running.end, 0.0)

    return *asyncio.run(run()), said


@pytest.mark.failure("F067")
def test_a_step_that_gets_no_resources_is_given_up_with_sruns_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "BUSY_TIMEOUT_S", 0.2)
    running, why, said = run_step(f"{BUSY}; sleep 60", lambda running: bool(running.ended()), tmp_path / "log")
    assert "within 0.2 s: srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)" in why
    assert "squeue --steps" in why
    assert said == list(running.words)  # people see it at once, not when it is given up
    assert running.process.poll() is not None


@pytest.mark.failure("F067")
def test_a_step_that_gets_its_resources_late_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "BUSY_TIMEOUT_S", 0.2)
    created = "echo 'srun: Step created for job 7' >&2"
    script = f"{BUSY}; {created}; sleep 0.5; echo on; sleep 60"
    _, why, _ = run_step(script, lambda running: "on" in running.words, tmp_path / "log")
    assert why == ""


def test_the_end_of_a_step_is_told_with_its_last_words(tmp_path: Path) -> None:
    error = "srun: error: Unable to create step for job 7: Invalid option"
    script = f"echo; echo '{error}'; printf 'no line end'; exit 3"
    log = tmp_path / "log"
    _, why, said = run_step(script, lambda running: running.process.poll() is not None and len(running.words) > 1, log)
    assert why == "sh ended with status 3: no line end"
    assert said == [error, "no line end"]
    assert log.read_text() == f"{error}\nno line end\n"
    assert run_step("kill -9 $$", lambda running: bool(running.ended()), log)[1] == "sh ended by SIGKILL"


def test_a_step_of_thousands_of_tasks_does_not_flood_the_screen(tmp_path: Path) -> None:
    log = tmp_path / "log"
    running, _, said = run_step("seq 5000; sleep 60", lambda running: running.num_lines == 5000, log)
    assert said[step.SHOWN_LINES - 1 :] == [str(step.SHOWN_LINES), f"what sh says further is in {log}"]
    assert running.words[-1] == "5000"
    assert len(log.read_text().splitlines()) == 5000
