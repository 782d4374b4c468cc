"""Whom a hanging run waits for, from played stacks, counters and times."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_conduct import begin, ready
from trainpkg.launch import stacks
from trainpkg.launch.head.blame.failure import find_cause
from trainpkg.launch.head.blame.generation import Generation
from trainpkg.launch.head.blame.hang import culprits, grouped
from trainpkg.launch.stacks import Stack

WAITING = Stack(("all_reduce (distributed/distributed_c10d.py:2895)", "wrapper (distributed/c10d_logger.py:83)",
                 "loop (trainpkg/train.py:120)"), "S")  # fmt: skip
BACKWARD = Stack(("_engine_run_backward (autograd/graph.py:966)", "loop (trainpkg/train.py:118)"), "S")
LOADING = Stack(("read (data/disk.py:7)", "batch (data/disk.py:40)", "loop (trainpkg/train.py:110)"), "S")


@pytest.mark.failure("F096")
@pytest.mark.parametrize(
    ("found", "steps", "expected"),
    [
        ([WAITING, WAITING, LOADING, WAITING], [5, 5, 5, 5], [2]),
        ([BACKWARD, LOADING], [5, 5], [1]),
        ([WAITING, Stack((), "T")], [5, 5], [1]),  # stopped: it writes no stack
        ([WAITING, Stack(("write (a.py:1)",), "D"), LOADING], [5, 5, 5], [1]),
        ([WAITING, WAITING, WAITING], [6, 5, 6], [1]),  # all wait, but one in an earlier operation
        ([WAITING, WAITING, BACKWARD], [5, 5, 5], [2]),
        ([WAITING, WAITING], [5, 5], []),
        ([WAITING, BACKWARD], [5, 5], []),
        ([], [], []),
    ],
)
def test_the_one_whose_stack_differs(found: list[Stack], steps: list[int], expected: list[int]) -> None:
    assert culprits(dict(enumerate(found)), dict(enumerate(steps))) == expected


DUMP = """Thread 0x00007fe0a01646c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007fe0a0bd7b80 (most recent call first):
  File "/site/torch/distributed/distributed_c10d.py", line 2895 in all_reduce
  File "/site/trainpkg/train.py", line 12 in <module>
"""


def test_a_dump_is_read_from_a_log() -> None:
    frames = ("all_reduce (distributed/distributed_c10d.py:2895)", "<module> (trainpkg/train.py:12)")
    assert stacks.parse(f"step 3\n{DUMP}\nstep 4\n") == frames
    assert stacks.parse(DUMP.replace("Current thread", "Thread").replace("2895", "7") + DUMP) == frames
    fatal = f"Fatal Python error: Segmentation fault\n\n{DUMP}\nExtension modules: numpy.core (total: 1)\n"
    assert stacks.parse(fatal) == frames
    assert stacks.parse("step 3\n") == ()


def running(**timeouts: float) -> Generation:
    """Four ranks on two nodes that have joined at time 100."""
    generation = begin(2, **timeouts)
    ready(generation, [0, 1])
    generation.gone(90.0)
    for rank in range(4):
        say(generation, rank, 95.0, "hello")
        say(generation, rank, 100.0, "joined")
    return generation


def say(generation: Generation, rank: int, now_s: float, event: str, **more: Any) -> None:
    generation.take(rank // 2, {"type": "event", "event": event, "rank": rank} | more, now_s)


def verdict(generation: Generation, found: list[Stack] | None = None, now_s: float = 0.0) -> Any:
    groups = [{"ranks": [rank], "frames": s.frames, "state": s.state} for rank, s in enumerate(found or [])]
    generation.take(0, {"type": "stacks", "stacks": groups}, now_s)
    generation.judge(now_s)
    return find_cause(generation.all_records())


def test_no_progress_is_named_with_the_likely_culprit_and_everybodys_place() -> None:
    generation = running(progress_s=30)
    for rank in range(4):
        say(generation, rank, 110.0, "step", step=7, total=50)
    generation.check_late(139.0)
    assert generation.failed_s is None
    generation.check_late(141.0)
    assert generation.gathered(141.0), "nobody will say more"
    told = verdict(generation, [WAITING, WAITING, WAITING, LOADING])
    assert (told.kind, told.rank, told.step, told.status) == ("no_progress", 3, 7, 1)
    assert told.sentence == (
        "rank 3 on node 1 (n2) seems to keep the others waiting: no rank has done a step for 31 s "
        "(launch.progress_timeout_s); it is in read (data/disk.py:7), called from batch (data/disk.py:40); the 3 "
        "other(s) wait: of the first, it is in all_reduce (distributed/distributed_c10d.py:2895), called from loop "
        "(trainpkg/train.py:120)"
    )
    assert grouped(generation.stacks)[0]["ranks"] == [0, 1, 2]


def test_no_progress_without_a_culprit_blames_nobody() -> None:
    generation = running(progress_s=30)
    generation.check_late(141.0)
    told = verdict(generation, [WAITING] * 4)
    assert (told.kind, told.rank, told.node) == ("no_progress", None, -1)
    assert told.sentence.startswith("no rank has done a step for 41 s (launch.progress_timeout_s); nothing tells")


@pytest.mark.failure("F099")
def test_evaluating_and_saving_are_activity_and_a_save_may_take_its_own_time() -> None:
    generation = running(progress_s=30, save_s=300)
    say(generation, 0, 125.0, "busy", phase="evaluating")
    generation.check_late(150.0)
    say(generation, 1, 154.0, "busy", phase="evaluating")  # a pass done
    generation.check_late(180.0)
    say(generation, 0, 183.0, "busy", phase="saving")
    generation.check_late(480.0)
    assert generation.failed_s is None
    generation.check_late(484.0)
    assert generation.failed_s is not None


def test_zero_waits_for_ever_and_programs_that_report_nothing_are_left_alone() -> None:
    generation = running(progress_s=0)
    generation.check_late(1e6)
    assert generation.failed_s is None
    silent = begin(2, progress_s=30, init_s=1e9)
    ready(silent, [0, 1])
    silent.gone(0.0)
    silent.check_late(1e6)
    assert silent.failed_s is None


@pytest.mark.failure("F098")
def test_a_rank_that_does_not_come_to_the_end_is_named() -> None:
    generation = running(end_s=20)
    for rank in (0, 1, 2):
        say(generation, rank, 110.0, "busy", phase="end")
    say(generation, 3, 111.0, "busy", phase="saving")  # alone: the others have left
    generation.check_late(131.0)
    told = verdict(generation, [WAITING] * 4)
    assert (told.kind, told.rank) == ("straggler", 3)
    assert "rank 3 on node 1 (n2) did not come to the end of the run, where 3 other(s) wait since 20 s" in told.sentence
    assert "it is in all_reduce" in told.sentence


@pytest.mark.failure("F098")
def test_a_rank_that_leaves_too_early_is_named() -> None:
    generation = running(end_s=20)
    for rank in range(4):
        say(generation, rank, 105.0, "step", step=5, total=10)
    say(generation, 1, 110.0, "busy", phase="end")
    generation.check_late(131.0)
    told = verdict(generation, [WAITING] * 4)
    assert (told.kind, told.rank) == ("straggler", 1)
    assert "rank 1 on node 0 (n1) came to the end of the run at step 5 of 10, while 3 other(s) did not" in told.sentence


def test_the_rank_that_writes_the_result_may_be_last() -> None:
    generation = running(end_s=20, save_s=300)
    for rank in (1, 2, 3):
        say(generation, rank, 110.0, "busy", phase="end")
    say(generation, 0, 110.0, "busy", phase="result")
    generation.check_late(300.0)
    assert generation.failed_s is None
    generation.check_late(411.0)
    assert generation.failed_s is not None


@pytest.mark.failure("F096")
def test_a_rank_that_takes_no_part_is_named_when_all_others_give_up() -> None:
    generation = running()
    text = {"error_type": "RuntimeError", "message": "Timed out waiting 600000ms for recv", "victim": True}
    for rank in (0, 2, 3):
        say(generation, rank, 700.0, "exception", step=7, **text)
    told = verdict(generation, [Stack(), LOADING], 702.0)
    assert (told.kind, told.rank) == ("wedged", 1)
    assert "rank 1 on node 0 (n1) took no part in a collective operation that 3 other(s) gave up" in told.sentence
    assert "it is in read (data/disk.py:7)" in told.sentence
    assert "3 other ranks lost their peer" in told.sentence


@pytest.mark.failure("F096")
def test_a_death_that_is_told_late_comes_before_what_was_inferred() -> None:
    generation = running()
    say(generation, 0, 200.0, "exception", step=7, error_type="RuntimeError", message="reset by peer", victim=True)
    ended = {"rank": 3, "exit_code": None, "signal": 9, "step": 7, "done": None, "stopped": False, "age_s": 2.1}
    generation.take(1, {"type": "ended"} | ended, 203.0)
    assert verdict(generation, [Stack(), LOADING], 203.0).rank == 3


def test_a_rank_that_hangs_before_joining_is_named_not_those_that_wait_for_it() -> None:
    generation = begin(2, init_s=60)
    ready(generation, [0, 1])
    generation.gone(90.0)
    for rank in range(4):
        say(generation, rank, 95.0, "hello")
    generation.check_late(161.0)
    told = verdict(generation, [WAITING, LOADING, WAITING, WAITING])
    assert (told.kind, told.rank) == ("init_timeout", 1)
    assert "rank 1 on node 0 (n1) did not join the process group within 60 s" in told.sentence
