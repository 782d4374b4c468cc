"""Causes and victims, from what nodes tell."""

from __future__ import annotations

from typing import Any

import pytest

from trainpkg.launch.head.failure import Record, find_cause, rank_record


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
    assert found.sentence == "rank 2 on node 1 (n2) raised ValueError at step 4: first line; 1 other rank lost its peer"
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
    assert not find_cause([record("exception", 9, 1, type="ValueError", step=5)]).repeats(first)
    killed = find_cause([record("signal", 0, 2, signal=9, step=5)])
    assert not killed.repeats(killed)
    assert not first.repeats(None)
