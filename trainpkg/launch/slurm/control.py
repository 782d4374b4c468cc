"""What Slurm's controller says about jobs and what is asked of it: our job's life, another's state, a requeue.

Only reads and asks; who may write where, and whether a run should go on, is decided in `head`.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainpkg.errors import UserError

OUTSIDE = (
    "`launch` runs outside of containers, where Slurm's commands are; launch.wrapper takes nodes' processes into one"
)
ASK_TIMEOUT_S = 60.0
# Slurm holds a requeued job back for cred_expire (120 s by default), unless it has a later begin of its own. That must
# lie after the job's end on all nodes (epilogs included), else the 120 s hold after all.
BACK_IN_S = 10
END_WAIT_S = 120.0  # for Slurm to end what it has put back: its KillWait is 30 s by default


class NoAnswerError(Exception):
    """Slurm is there but does not answer now: what it would say is unknown."""


@dataclass(frozen=True)
class Life:
    """One life of a Slurm job: put back into the queue it keeps its number and counts a restart."""

    job: str  # as Slurm's commands take it: 41, or 40_7 for a task of an array
    cluster: str = ""
    restarts: int | None = None  # None: Slurm could not be asked
    name: str = ""  # with `user` tells the job from another one that is given its number years later
    user: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


def ask_slurm(job_id: str) -> dict[str, str]:
    """The fields of `scontrol show job`: a rule's shell under Snakemake knows the job's number and nothing else."""
    command = ["scontrol", "show", "job", job_id, "--oneliner"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise UserError(f"SLURM_JOB_ID is {job_id}, but there is no scontrol in PATH here. {OUTSIDE}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"SLURM_JOB_ID is {job_id}, but `{' '.join(command)}` does not answer: {error}") from error
    if asked.returncode != 0:
        said = (asked.stderr or asked.stdout).strip()
        raise UserError(
            f"SLURM_JOB_ID is {job_id}, but `{' '.join(command)}` says {said!r}. Inside somebody else's job, "
            "launch.where: local starts the ranks on this machine alone; a slurm.conf not found needs SLURM_CONF"
        )
    return dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=(\S*)", asked.stdout.splitlines()[0]))


def own_name(env: Mapping[str, str]) -> str:
    """This job as Slurm's commands take it. One task of an array has the array's own number, which means all tasks."""
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else env["SLURM_JOB_ID"]


def own_life(env: Mapping[str, str]) -> Life | None:
    """The job that this process is part of, None outside Slurm. Its fields are empty where Slurm does not answer."""
    if not env.get("SLURM_JOB_ID"):
        return None
    job = own_name(env)
    cluster = env.get("SLURM_CLUSTER_NAME", "")
    try:
        fields = ask_slurm(job) if shutil.which("scontrol") else {}
    except UserError:
        fields = {}
    restarts = fields.get("Restarts") or env.get("SLURM_RESTART_COUNT", "")
    user = fields.get("UserId", "").partition("(")[0]
    known = int(restarts) if restarts.isdigit() else None
    return Life(job, cluster, known, fields.get("JobName", ""), user, fields)


def job_state(job: str, cluster: str = "", name: str = "", user: str = "") -> str | None:
    """Slurm's state of a job; "" where Slurm knows no such job (any more); None where there is no Slurm to ask.

    Given a name and a user, another job that has the number by now does not count. `cluster`: another one than this.

    Raises:
        NoAnswerError: the controller cannot be reached.
    """
    command = ["squeue", "--noheader", "--states=all", "--format=%T|%u|%j", f"--jobs={job}"]
    command += [f"--clusters={cluster}"] if cluster else []
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(str(error)) from error
    if "Invalid job id" in asked.stderr:
        return ""
    if asked.returncode != 0:
        if cluster:  # whether clusters know of each other is the site's matter
            return None
        raise NoAnswerError(asked.stderr.strip() or f"squeue ended with status {asked.returncode}")
    for line in asked.stdout.splitlines():
        if line.count("|") < 2:  # such as the headline of another cluster's answer
            continue
        state, whose, called = line.split("|", 2)
        if not name or (whose == user and called.partition(" ")[0] == name):
            return state.strip()
    return ""


def why_not_put_back(life: Life | None, env: Mapping[str, str], uid: int) -> str:
    """Why this job cannot be requeued by its own launch; empty when it can."""
    if life is None:
        return "this is no Slurm job"
    if not life.fields:
        return f"Slurm does not answer about job {life.job}"
    owner = re.search(r"\((\d+)\)", life.fields.get("UserId", ""))
    if owner is not None and uid not in (0, int(owner[1])):
        return f"job {life.job} belongs to {life.fields['UserId']}"
    if life.fields.get("BatchFlag") != "1":
        return f"job {life.job} is interactive (salloc, srun): Slurm requeues batch jobs only"
    if "HetJobId" in life.fields:
        return f"job {life.job} is part of a heterogeneous job"
    if "SLURM_STEP_ID" in env:
        return f"this is step {env['SLURM_STEP_ID']} of job {life.job}, whose batch script does not end with it"
    state = _state_now(life)
    if state != "RUNNING":  # such as CANCELLED: a requeue would bring it back against somebody's will
        return f"job {life.job} is {state or 'unknown to Slurm by now'}, so somebody ends it or has already requeued it"
    if life.fields.get("Requeue") != "1":
        return f"job {life.job} may not be requeued (--no-requeue, or JobRequeue=0 on this cluster): sbatch --requeue"
    return ""


def _state_now(life: Life) -> str:
    try:
        return ask_slurm(life.job).get("JobState", "")
    except UserError:
        return ""


def put_back(life: Life) -> str:
    """Ask Slurm to end this job and start it again under the same number; returns "" when the end has come.

    Else Slurm's words. One scontrol asks for both things, deaf to the SIGTERM that follows the first: a second program
    would come too late, and the job would wait out Slurm's 120 s.
    """
    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    commands = f"requeue {life.job}\nupdate JobId={life.job} StartTime=now+{BACK_IN_S}\n"
    try:
        asked = subprocess.run(
            ["sh", "-c", "trap '' TERM; exec scontrol"],
            input=commands, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False,
        )  # fmt: skip
        said = asked.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    end = time.monotonic() + (END_WAIT_S if _is_going(life) else 1.0)
    while not ended and time.monotonic() < end:
        time.sleep(0.1)
    signal.signal(signal.SIGTERM, before)
    if ended:
        return ""
    return said.splitlines()[0] if said else "Slurm was asked, but did not end the job"


def _is_going(life: Life) -> bool:
    """Whether the job is on its way out of this life: by the requeue, or by a preemption that came first."""
    try:
        fields = ask_slurm(life.job)
    except UserError:
        return False
    return fields.get("JobState") != "RUNNING" or fields.get("Restarts", "") != str(life.restarts)
