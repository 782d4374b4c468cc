"""When a job with a time limit begins to stop, on a played clock."""

from __future__ import annotations

import pytest

from trainpkg.config.execution import Slurm
from trainpkg.launch.head.deadline import Deadline


def test_the_lead_holds_while_saving_is_quick() -> None:
    deadline = Deadline(1000.0, 120.0, save_s=1.0, step_s=2.0)
    assert not deadline.near(879.0)
    assert deadline.near(880.0)
    assert deadline.why == "the job's time limit is near"
    assert not deadline.over(994.0)
    assert deadline.over(995.0)


def test_a_save_that_takes_longer_than_the_lead_begins_earlier_and_is_named() -> None:
    deadline = Deadline(1000.0, 120.0, save_s=150.0, step_s=5.0)
    assert deadline.near(685.0)
    assert "315 s ahead instead of 120 s, since a save takes 150 s" in deadline.why


def test_no_limit_is_never_near() -> None:
    assert not Deadline(None, 120.0, save_s=1e9).near(1e12)
    assert not Deadline(None, 120.0).over(1e12)


def test_a_short_lead_leaves_most_of_itself_for_saving() -> None:
    assert not Deadline(60.0, 3.0).over(58.9)
    assert Deadline(60.0, 3.0).over(59.0)


@pytest.mark.parametrize(
    ("limit_s", "lead_s", "warning"),
    [
        (None, 120.0, "USR2@120"),
        (86_400.0, 120.0, "USR2@120"),
        (600.0, 120.0, "USR2@120"),
        (300.0, 75.0, None),  # sent up to 60 s early, it would come before half the time is over
        (60.0, 15.0, None),  # and here with the job's start
    ],
)
def test_a_short_job_is_not_stopped_at_its_start(limit_s: float | None, lead_s: float, warning: str | None) -> None:
    slurm = Slurm()
    assert slurm.lead_s(limit_s) == lead_s
    assert slurm.warning(limit_s) == warning


def test_without_a_signal_the_clock_works() -> None:
    assert Slurm(signal=None).lead_s() == 120.0
    assert Slurm(signal=None).warning(86_400.0) is None
