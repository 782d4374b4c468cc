"""Steps that `launch` starts: what srun says is kept, and a step that never comes about ends by name."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from trainpkg.launch.head import step
from trainpkg.launch.head.step import Step

BUSY = "echo 'srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)' >&2"


def run_step(script: str, until: Callable[[Step], bool]) -> tuple[Step, str, list[str]]:
    """The step of this script, what `ended` says once `until` holds, and all lines that were shown."""
    said: list[str] = []

    async def run() -> tuple[Step, str]:
        running = Step(["sh", "-c", script], os.environ, said.append)
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
def test_a_step_that_gets_no_resources_is_given_up_with_sruns_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "BUSY_TIMEOUT_S", 0.2)
    running, why, said = run_step(f"{BUSY}; sleep 60", lambda running: bool(running.ended()))
    assert "within 0.2 s: srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)" in why
    assert "squeue --steps" in why
    assert said == list(running.words)  # people see it at once, not when it is given up
    assert running.process.poll() is not None


@pytest.mark.failure("F067")
def test_a_step_that_gets_its_resources_late_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "BUSY_TIMEOUT_S", 0.2)
    created = "echo 'srun: Step created for job 7' >&2"
    _, why, _ = run_step(f"{BUSY}; {created}; sleep 0.5; echo on; sleep 60", lambda running: "on" in running.words)
    assert why == ""


def test_the_end_of_a_step_is_told_with_its_last_words() -> None:
    script = "echo; echo 'srun: error: Unable to create step for job 7: Invalid option'; printf 'no line end'; exit 3"
    _, why, said = run_step(script, lambda running: running.process.poll() is not None and len(running.words) > 1)
    assert why == "sh ended with status 3: no line end"
    assert said == ["srun: error: Unable to create step for job 7: Invalid option", "no line end"]
    assert run_step("kill -9 $$", lambda running: bool(running.ended()))[1] == "sh ended by SIGKILL"
