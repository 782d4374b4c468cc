"""Whether another attempt is worth its nodes, from what earlier ones left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainpkg.launch.head import history
from trainpkg.launch.slurm.control import Life

KILLED: dict[str, Any] = {"verdict": None}
FAILED = {"verdict": "failed", "run_again": True, "step_first": 3}
AGAIN = {"verdict": "again", "run_again": True, "step_first": 3}
STUCK = {"verdict": "stuck", "run_again": False, "cause": "no step"}
OWN_SCRIPT = {"verdict": None, "counts_steps": False}
SAVED = FAILED | {"saved_before": 10, "saved_after": 20}
SAVED_NOTHING = FAILED | {"saved_before": 20, "saved_after": 20}


def past(folder: Path, *attempts: dict[str, Any]) -> Path:
    """A folder `launch` in which these attempts lie; each is a retry of the one before, all of Slurm job 7."""
    for number, tree in enumerate(attempts, start=1):
        path = folder / "launch" / str(number) / "attempt.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"attempt": number, "job": "7", "retry": number, "restarts": 0} | tree))
    return folder / "launch"


def why_not(launches: Path, retry: int = 9, life: Life | None = None) -> str:
    return history.why_not_again(launches, launches.parent, retry, life)


def test_there_is_nothing_to_refuse_at_first(tmp_path: Path) -> None:
    assert why_not(tmp_path / "launch") == ""


@pytest.mark.parametrize("retry", [1, 2])
def test_a_person_is_obeyed_and_a_retry_reads_the_verdict(tmp_path: Path, retry: int) -> None:
    launches = past(tmp_path, AGAIN, STUCK)
    expected = "" if retry == 1 else "attempt 2 ended with no step, which another try does not change"
    assert why_not(launches, retry) == expected


def test_a_requeued_job_reads_the_verdict_of_its_own_earlier_life_only(tmp_path: Path) -> None:
    """Snakemake's count of attempts stays where it was when a job is requeued: Slurm's count of restarts tells."""
    launches = past(tmp_path, STUCK)
    assert why_not(launches, 1, Life("7", restarts=0)) == ""
    assert "attempt 1 ended" in why_not(launches, 1, Life("7", restarts=1))
    assert why_not(launches, 1, Life("8", restarts=1)) == "", "its first life came to no attempt; a person started it"


@pytest.mark.parametrize(
    ("attempts", "vain"),
    [
        ([KILLED, KILLED], []),
        ([KILLED, KILLED, KILLED], [1, 2, 3]),
        ([KILLED, FAILED | {"step_first": None}, KILLED], [1, 2, 3]),
        ([AGAIN, KILLED, KILLED], []),
        ([AGAIN, KILLED, KILLED, KILLED], [2, 3, 4]),
        ([KILLED, KILLED, AGAIN], []),
        ([SAVED, SAVED_NOTHING, SAVED_NOTHING], []),
        ([SAVED, SAVED_NOTHING, SAVED_NOTHING, SAVED_NOTHING], [2, 3, 4]),
        ([KILLED, KILLED, KILLED | {"retry": 1}], []),  # a person started anew
        ([OWN_SCRIPT, OWN_SCRIPT, OWN_SCRIPT], []),  # nobody can tell how far it came
        ([FAILED, FAILED, FAILED], []),  # it keeps its own checkpoints and has done steps
    ],
)
def test_attempts_that_bring_the_run_no_further_end_it(tmp_path: Path, attempts: list[Any], vain: list[int]) -> None:
    told = why_not(past(tmp_path, *attempts))
    assert bool(told) == bool(vain)
    if vain:
        assert told.startswith(f"3 attempts in a row ({vain[0]}: ")


def test_what_a_killed_attempt_saved_is_seen_in_the_checkpoints(tmp_path: Path) -> None:
    """Nobody wrote its end, but the next one wrote where it began."""
    launches = past(tmp_path, KILLED, KILLED | {"saved_before": 10}, KILLED | {"saved_before": 20})
    latest = tmp_path / "checkpoints/latest"
    latest.parent.mkdir()
    latest.write_text("step-00000020\n")
    assert history.saved_step(tmp_path) == 20
    assert history.in_vain(launches, 20) == [3]
    assert history.in_vain(launches, 30) == []


def test_lives_of_one_job_are_one_campaign(tmp_path: Path) -> None:
    lives = [KILLED | {"retry": 1, "restarts": count} for count in range(3)]
    launches = past(tmp_path, AGAIN, *lives)
    assert "3 attempts in a row (2: killed, 3: killed, 4: killed)" in why_not(launches, 1, Life("7", restarts=3))
