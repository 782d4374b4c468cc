"""The job's own way back into the queue when its run is to go on: the lock stays, Slurm is asked, the end awaited."""

from __future__ import annotations

import os

from trainpkg.launch.head.lock import Lock
from trainpkg.launch.head.screen import Screen
from trainpkg.launch.slurm import control
from trainpkg.launch.slurm.control import Life


def put_back(policy: str, life: Life | None, held: Lock, screen: Screen) -> None:
    """Put this job back into the queue, or say why not. The launch ends 75 in both cases.

    No process of the run is left by now. `policy`: the config's slurm.requeue.
    """
    why_not = control.why_not_put_back(life, os.environ, os.getuid())
    if policy == "never":
        why_not = "slurm.requeue = never"
    if why_not or life is None:
        screen.say(f"not put back into the queue: {why_not}. Whoever started it has to run it again")
        return
    screen.say(f"Slurm job {life.job} goes back into the queue and on from there, with or without Snakemake")
    held.kept = True  # in the queue the job is still this run's one writer
    if refused := control.put_back(life):
        held.kept = False
        screen.say(f"not put back into the queue: {refused}. It has to be run again")
