"""What srun says of its tasks; the lines are Slurm 22.05's own, and those of public reports."""

from __future__ import annotations

import signal

import pytest

from trainpkg.launch.head.blame.step_words import End, ends, unlaunched


@pytest.mark.failure("F090")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun: error: n2: task 1: Killed", {1: (signal.SIGKILL, "Killed")}),
        ("srun: error: n1: task 0: Segmentation fault (core dumped)",
         {0: (signal.SIGSEGV, "Segmentation fault (core dumped)")}),
        ("srun: error: n1: task 0: Exited with exit code 7", {0: (None, "Exited with exit code 7")}),
        # chrisknewman/tusas issue 149; HAFS issue 101
        ("srun: error: nid001277: tasks 1-3: Out Of Memory", dict.fromkeys((1, 2, 3), (9, "Out Of Memory"))),
        ("srun: error: Orion-18-69: task 289: Bus error", {289: (signal.SIGBUS, "Bus error")}),
        ("srun: error: n[1-3]: tasks 0,2-3: Terminated", dict.fromkeys((0, 2, 3), (signal.SIGTERM, "Terminated"))),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", {}),
        ("srun: Terminating StepId=7.0", {}),
        ("step 7 of 50", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_ends_of_tasks(line: str, expected: dict[int, End]) -> None:
    assert ends(line) == expected


def test_nodes_on_which_nothing_could_be_started() -> None:
    line = "srun: error: Task launch for StepId=3.0 failed on node n2: Communication connection failure"
    assert unlaunched(line) == {"n2": "Communication connection failure"}
    assert unlaunched("srun: error: Application launch failed: Communication connection failure") == {}
