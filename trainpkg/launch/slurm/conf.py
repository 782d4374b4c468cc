"""SLURM_CONF for Slurm's commands where it was lost on the way from the batch script to here.

Snakemake's job-step executor hands on the job's number and hardly any other SLURM_ variable, SLURM_CONF not among them.
Where the cluster's slurm.conf does not lie where Slurm was built to look, every srun and scontrol then fails. The
processes above this one, of the same user and in the same job, still have the variable in the environment that they
began with. Nothing else is taken from them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


def find(env: Mapping[str, str], ancestors: Iterable[Mapping[str, str]]) -> str | None:
    """The SLURM_CONF of the nearest ancestor in the job of `env`, if it names a file and `env` has none."""
    job = env.get("SLURM_JOB_ID")
    if not job or "SLURM_CONF" in env:
        return None
    for above in ancestors:
        path = above.get("SLURM_CONF", "")
        if above.get("SLURM_JOB_ID") == job and path and Path(path).is_file():
            return path
    return None


def ancestor_environments() -> Iterator[dict[str, str]]:
    """What the processes above this one began with, the parent first, as far as this user may look."""
    pid = os.getppid()
    while pid > 1:
        place = Path("/proc") / str(pid)
        try:
            raw = (place / "environ").read_bytes()
            pid = int((place / "stat").read_text(errors="replace").rpartition(") ")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        words = (word.partition("=") for word in os.fsdecode(raw).split("\0") if "=" in word)
        yield {name: value for name, _, value in words}
