"""Causes and victims, from what nodes tell."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from trainpkg.launch.head.blame.failure import Record, find_cause, rank_record
from trainpkg.launch.head.outcome import Outcome


def ended(rank: int = 0, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "exit_code": None, "signal": None, "step": 7, "done": None, "stopped": False} | more


def raised(victim: bool = False, **more: Any) -> dict[str, Any]:
    return {"error_type": "RuntimeError", "message": "boom", "traceback": "T", "step": 8, "victim": victim} | more


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (ended(exit_code=0, done="finished"), None),
        (ended(exit_code=75, done="again"), None),
        (ended(exit_code=0, done="finished", stopped=True), None),
        (ended(exit_code=0), "early_exit"),
        (ended(exit_code=75), "early_exit"),
        (ended(signal=9), "signal"),
        (ended(signal=9, done="finished"), "signal"),
        (ended(signal=9, stopped=True), "stopped"),
        (ended(exit_code=3), "lost_peer"),
        (ended(exit_code=5), "exit"),
        (ended(exit_code=1, exception=raised()), "exception"),
        (ended(exit_code=2, exception=raised(user_error=True)), "user_error"),
        (ended(signal=6, exception=raised(victim=True)), "lost_peer"),
        (ended(signal=9, stopped=True, exception=raised()), "exception"),
    ],
)
def test_what_an_end_means(message: dict[str, Any], kind: str | None) -> None:
    record = rank_record(message, 1, "n2", 0.0)
    assert (record.kind if record else None) == kind


def record(kind: str, time_s: float, rank: int | None = 0, **more: Any) -> Record:
    return Record(kind, 1, "n2", time_s, rank=rank, **more)


def test_the_earliest_cause_wins_over_earlier_victims() -> None:
    found = find_cause(
        [
            record("lost_peer", 1.0, 0),
            record("signal", 1.2, 3, signal=11, step=5),
            record("exception", 1.1, 2, type="ValueError", message="first line\nsecond", step=4, traceback="T"),
            record("stopped", 2.0, 1),
        ]
    )
    assert (found.rank, found.kind, found.status) == (2, "exception", 1)
    assert found.sentence == (
        "rank 2 on node 1 (n2) raised ValueError at step 4: first line; 1 other rank lost its peer; "
        "rank 3 on node 1 (n2) failed too, 0.10 s later: SIGSEGV"
    )
    assert [victim["rank"] for victim in found.victims] == [0, 3, 1]


def test_a_lost_node_beats_inference_and_inference_beats_victims() -> None:
    silent = record("node_silent", 9.0, None, message="was silent for 9 s")
    late = record("init_timeout", 5.0, 1, message="did not join")
    victim = record("lost_peer", 1.0, 2, message="connection reset")
    assert find_cause([victim, late, silent]).kind == "node_silent"
    assert find_cause([victim, late]).kind == "init_timeout"
    alone = find_cause([victim])
    assert "no rank was seen to fail first" in alone.sentence
    assert alone.status == 1


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (record("signal", 0, signal=9), 137),
        (record("exit", 0, exit_code=5), 5),
        (record("exit", 0, exit_code=75), 1),
        (record("early_exit", 0, exit_code=0), 1),
        (record("user_error", 0, exit_code=2), 2),
        (record("exception", 0, exit_code=1), 1),
        (record("node_lost", 0, None, signal=9), 137),
        (record("node_lost", 0, None), 1),
    ],
)
def test_the_status_is_the_causes(cause: Record, status: int) -> None:
    assert find_cause([cause]).status == status


def test_only_ones_own_doing_at_the_same_step_repeats() -> None:
    first = find_cause([record("exception", 0, 2, type="ValueError", step=5)])
    assert find_cause([record("exception", 9, 2, type="ValueError", step=5)]).repeats(first)
    assert not find_cause([record("exception", 9, 2, type="ValueError", step=6)]).repeats(first)
    assert not find_cause([record("exception", 9, 2, type="KeyError", step=5)]).repeats(first)
    bug = find_cause([record("exception", 9, 1, type="ValueError", step=5)])
    assert bug.repeats(first), "all ranks have the bug, and any of them may be the first to say so"
    assert not find_cause([record("exit", 9, 1, exit_code=7, step=5)]).repeats(
        find_cause([record("exit", 0, 2, exit_code=7, step=5)])
    )
    assert not first.repeats(None)


@pytest.mark.parametrize(("signum", "by_hand"), [(signal.SIGSEGV, False), (signal.SIGKILL, True)])
def test_a_death_by_signal_at_the_same_step_repeats_but_may_have_come_from_outside(signum: int, by_hand: bool) -> None:
    first = find_cause([record("signal", 0, 2, signal=signum, step=5)])
    again = find_cause([record("signal", 9, 2, signal=signum, step=5)])
    assert again.repeats(first)
    assert Outcome("failed", 1, again, repeated=True).run_again is by_hand
    assert not find_cause([record("signal", 9, 2, signal=signum, step=6)]).repeats(first)
    assert not find_cause([record("signal", 9, 2, signal=signal.SIGBUS, step=5)]).repeats(first)


def memory(**more: Any) -> dict[str, Any]:
    known = {"cgroup": "/slurm/job_7", "oom_kills": 0, "limit_mb": 4000, "peak_mb": 812, "host_oom_kills": 0}
    return {"memory": known | more}


@pytest.mark.failure("F096")
@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        (memory(oom_kills=1, peak_mb=4000), "oom",
         "was killed by the kernel at step 7: out of memory (cgroup /slurm/job_7 limit 4000 MB, peak 4000 MB)"),
        (memory(), "signal", "was killed by SIGKILL at step 7, not by us: no sign that memory ran out (cgroup "
         "/slurm/job_7 limit 4000 MB, peak 812 MB, no OOM kill counted)"),
        (memory(oom_kills=None, host_oom_kills=2), "signal", "the kernel ended 2 process(es) of that host"),
        ({}, "signal", "whether memory ran out cannot be told"),
    ],
)  # fmt: skip
def test_a_kill_without_a_word_is_told_with_the_kernels_evidence(told: dict[str, Any], kind: str, words: str) -> None:
    killed = rank_record(ended(signal=9, **told), 1, "n2", 1.0)
    assert killed is not None
    found = find_cause([record("exception", 1.1, 1, type="RuntimeError"), killed])
    assert (found.rank, found.kind, found.status) == (0, kind, 137)
    assert words in found.sentence


def test_exceptions_for_want_of_memory_tell_how_much_was_asked_for() -> None:
    text = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
    one = rank_record(ended(exit_code=1, exception=raised(error_type="OutOfMemoryError", message=text)), 1, "n2", 0.0)
    assert one is not None
    found = find_cause([one])
    assert (found.kind, found.status) == ("oom", 1)
    assert "ran out of memory at step 8 (OutOfMemoryError, 20.00 GiB asked for): CUDA out of memory" in found.sentence
    silent = rank_record(ended(exit_code=1, last_lines=["Traceback", f"torch.OutOfMemoryError: {text}"]), 1, "n2", 0.0)
    assert silent is not None
    assert (silent.kind, silent.type) == ("oom", "torch.OutOfMemoryError")


@pytest.mark.failure("F096")
def test_an_abort_by_torchs_watchdog_is_a_lost_peer() -> None:
    line = "what(): [Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=199)"
    victim = rank_record(ended(signal=6, lost_peer=line), 1, "n2", 0.0)
    own = rank_record(ended(signal=6), 1, "n2", 0.0)
    assert victim is not None
    assert own is not None
    assert (victim.kind, own.kind) == ("lost_peer", "signal")
    assert find_cause([victim, record("signal", 5.0, 1, signal=9)]).signal == 9


@pytest.mark.failure("F096")
def test_an_unknown_exception_in_a_collective_yields_to_any_other_cause() -> None:
    early = rank_record(ended(rank=1, exit_code=1, exception=raised(collective=True)), 0, "n1", 1.0)
    assert early is not None
    assert find_cause([early, record("signal", 1.4, 3, signal=9)]).rank == 3
    alone = find_cause([early, record("lost_peer", 1.1, 2)])
    assert (alone.rank, alone.kind) == (1, "collective")
    assert "raised RuntimeError at step 8 in a collective operation: boom; 1 other rank lost its peer" in alone.sentence


def test_a_program_that_does_not_report_is_read_from_its_log() -> None:
    lines = ["Traceback (most recent call last):", "ValueError: lr must be positive"]
    own = rank_record(ended(exit_code=1, step=None, last_lines=lines), 1, "n2", 0.0)
    assert own is not None
    assert "exited with status 1 before its first step: ValueError: lr must be positive" in find_cause([own]).sentence
    closed = "RuntimeError: Connection closed by peer [127.0.0.1]:7"
    victim = rank_record(ended(exit_code=1, last_lines=[closed], lost_peer=closed), 1, "n2", 0.0)
    assert victim is not None
    assert victim.kind == "lost_peer"
