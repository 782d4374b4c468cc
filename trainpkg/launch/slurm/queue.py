"""This user's jobs as `squeue` lists them, in one call. Where it says nothing, nothing is known."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

TIMEOUT_S = 20.0
# The comment is last: it may hold anything. The executor writes the rule and the run into it.
FORMAT = "%i|%T|%r|%M|%l|%k"


@dataclass(frozen=True)
class QueuedJob:
    """A job in the queue. `reason` is why it waits; times are Slurm's words, such as 1-02:03:04."""

    job: str
    state: str
    reason: str = ""
    time_used: str = ""
    time_limit: str = ""
    comment: str = ""

    @property
    def words(self) -> str:
        """`PENDING (Priority)`, `RUNNING 10:03 of 1:00:00`."""
        if self.state == "RUNNING":
            return f"RUNNING {self.time_used} of {self.time_limit}"
        return f"{self.state} ({self.reason})" if self.reason not in ("", "None") else self.state


def own_jobs() -> list[QueuedJob] | None:
    """All of this user's jobs; None where there is no squeue or it does not answer."""
    command = ["squeue", "--me", "--noheader", "--array", f"--format={FORMAT}"]
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(asked.stdout) if asked.returncode == 0 else None


def parse(text: str) -> list[QueuedJob]:
    """The jobs in what squeue printed; lines of another shape are left out."""
    rows = [line.split("|", 5) for line in text.splitlines()]
    return [QueuedJob(*row) for row in rows if len(row) == 6]
