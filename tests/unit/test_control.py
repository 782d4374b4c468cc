"""What is read from Slurm's words on jobs, and when a job may put itself back into the queue."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from trainpkg.launch.slurm import control
from trainpkg.launch.slurm.control import Life

BATCH = {"UserId": "someone(1000)", "BatchFlag": "1", "Requeue": "1", "JobState": "RUNNING", "Restarts": "2"}
SHOWN = "JobId=41 JobName=train x y UserId=someone(1000) JobState=RUNNING Requeue=1 Restarts=2 BatchFlag=1 Comment=a"


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def life(**fields: str) -> Life:
    return Life("41", restarts=2, fields=BATCH | fields)


def without(name: str) -> Life:
    return Life("41", fields={key: value for key, value in BATCH.items() if key != name})


def test_the_count_of_restarts_is_asked_where_it_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake's executor takes SLURM_RESTART_COUNT out of the environment."""
    fake(tmp_path, monkeypatch, "scontrol", f"echo '{SHOWN}'")
    found = control.own_life({"SLURM_JOB_ID": "41", "SLURM_CLUSTER_NAME": "big"})
    assert found is not None
    assert (found.job, found.cluster, found.restarts, found.name, found.user) == ("41", "big", 2, "train", "someone")
    assert control.own_life({}) is None


def test_without_an_answer_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "scontrol", "exit 1")
    found = control.own_life({"SLURM_JOB_ID": "41", "SLURM_RESTART_COUNT": "3"})
    assert found is not None
    assert (found.restarts, found.fields) == (3, {})


def test_a_task_of_an_array_is_asked_for_as_one() -> None:
    """One task has the array's own number: a requeue of 40 would restart all of them."""
    env = {"SLURM_JOB_ID": "40", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "7"}
    assert control.own_name(env) == "40_7"


@pytest.mark.parametrize(
    ("found", "env", "uid", "words"),
    [
        (life(), {}, 1000, ""),
        (life(), {}, 0, ""),
        (None, {}, 0, "no Slurm job"),
        (Life("41"), {}, 0, "does not answer about job 41"),
        (life(), {}, 1001, r"belongs to someone\(1000\)"),
        (life(BatchFlag="0"), {}, 1000, "interactive"),
        (life(Requeue="0"), {}, 1000, "--no-requeue.*sbatch --requeue"),
        (life(HetJobId="41"), {}, 1000, "heterogeneous"),
        (life(), {"SLURM_STEP_ID": "3"}, 1000, "step 3 of job 41"),
    ],
)
def test_what_stands_in_the_way_of_a_requeue_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Life | None, env: dict[str, str], uid: int, words: str
) -> None:
    fake(tmp_path, monkeypatch, "scontrol", f"echo '{SHOWN}'")
    said = control.why_not_put_back(found, env, uid)
    assert re.search(words, said) if words else said == ""


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "TIMEOUT", "PENDING"])
def test_a_job_that_somebody_ends_is_not_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """scancel sends SIGTERM, on which a run saves and would go on: Slurm requeues cancelled jobs when asked."""
    fake(tmp_path, monkeypatch, "scontrol", f"echo '{SHOWN}' | sed s/RUNNING/{state}/")
    assert f"job 41 is {state}" in control.why_not_put_back(life(), {}, 1000)


def test_a_requeue_asks_for_both_things_at_once_and_survives_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM comes at once: a later program would not live to say when the job may start again."""
    script = (
        f"[ \"$1\" = show ] && {{ echo '{SHOWN}' | sed 's/Restarts=2/Restarts=3/'; exit; }}\n"
        f"read first; kill -TERM $$ {os.getpid()}; read second; echo $first, $second > {tmp_path}/asked"
    )
    fake(tmp_path, monkeypatch, "scontrol", script)
    assert control.put_back(life()) == "", "ends by itself, whatever Slurm finds of the job's processes"
    assert (tmp_path / "asked").read_text() == "requeue 41, update JobId=41 StartTime=now+10\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_refused_requeue_has_slurms_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"[ \"$1\" = show ] && {{ echo '{SHOWN}'; exit; }}\necho 'Requested operation is presently disabled' >&2"
    fake(tmp_path, monkeypatch, "scontrol", script)
    assert control.put_back(life()) == "Requested operation is presently disabled"


def test_an_asked_requeue_that_never_comes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "END_WAIT_S", 0.5)
    fake(tmp_path, monkeypatch, "scontrol", f"[ \"$1\" = show ] && echo '{SHOWN}' | sed s/RUNNING/PENDING/")
    assert control.put_back(life()) == "Slurm was asked, but did not end the job"
