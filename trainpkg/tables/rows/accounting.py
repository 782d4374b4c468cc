"""What Slurm's own accounting says of the jobs that launched runs: state, elapsed time, largest memory of a process.

One call of sacct for all jobs whose end the tables do not know yet. Where there is no sacct, or nothing behind it, the
columns stay empty: accounting is a site's choice, and what a run came to stands in its own files.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from trainpkg.tables.columns import ATTEMPT
from trainpkg.tables.rows.batch import TYPES, Batch

TIMEOUT_S = 60.0
FIELDS = ("JobIDRaw", "State", "ElapsedRaw", "Start", "End", "MaxRSS")
# Linux takes no longer word on a command line than 128 KiB.
JOBS_PER_WORD = 5000
# Clocks of nodes and of the controller differ a little.
SLACK_S = 30.0
ENDED = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REQUEUED",
    "TIMEOUT",
})  # fmt: skip
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
Ask = Callable[[Sequence[str]], str]
"""Job ids -> what sacct prints of them; nothing where nobody knows."""


@dataclass(frozen=True)
class Life:
    """One life of a job: put back into the queue it keeps its number. Unix seconds; MB are 10^6 bytes."""

    state: str
    elapsed_s: int | None
    start_s: float
    end_s: float
    max_rss_mb: float | None


def ask_sacct(job_ids: Sequence[str]) -> str:
    """sacct's lines on these jobs, all lives and steps; empty where there is no accounting."""
    words = [",".join(job_ids[start : start + JOBS_PER_WORD]) for start in range(0, len(job_ids), JOBS_PER_WORD)]
    command = ["sacct", "--noheader", "--parsable2", "--duplicates", f"--format={','.join(FIELDS)}"]
    command += [f"--jobs={word}" for word in words]
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""


def joined(batch: Batch, ask: Ask) -> Batch:
    """The batch with sacct's columns in its attempts; those whose job has ended keep what is known."""
    table = batch.attempts
    jobs, states, starts = (table[name].to_pylist() for name in ("slurm_job_id", "sacct_state", "start_unix_s"))
    open_rows = [row for row, job in enumerate(jobs) if job and job.isdigit() and states[row] not in ENDED]
    lives = parse(ask(sorted({jobs[row] for row in open_rows}, key=int))) if open_rows else {}
    if not lives:
        return batch
    found = {name: table[name].to_pylist() for name in ("sacct_state", "sacct_elapsed_s", "sacct_max_rss_mb")}
    for row in open_rows:
        life = life_at(lives.get(jobs[row], []), starts[row])
        if life is not None:
            its = (life.state, life.elapsed_s, life.max_rss_mb)
            for column, value in zip(found.values(), its, strict=True):
                column[row] = value
    for name, values in found.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values, TYPES[ATTEMPT[name]]))
    return replace(batch, attempts=table)


def life_at(lives: Sequence[Life], start_s: float | None) -> Life | None:
    """The life of a job in which something started at that time."""
    if start_s is None:
        return None
    held = [life for life in lives if life.start_s - SLACK_S <= start_s <= life.end_s + SLACK_S]
    # Where two lives touch, the one that began last before it.
    return max(held, key=lambda life: (life.start_s <= start_s, life.start_s), default=None)


def parse(text: str) -> dict[str, list[Life]]:
    """Lives by job, in sacct's order. A job's line is followed by those of its steps, which alone know memory."""
    found: dict[str, list[Life]] = {}
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != len(FIELDS):
            continue
        name, state, elapsed, start, end, rss = values
        job = re.split(r"[.+_]", name)[0]
        if name == job:
            words = state.split()  # such as CANCELLED by 1000
            elapsed_s = int(elapsed) if elapsed.isdigit() else None
            life = Life(words[0] if words else "", elapsed_s, _unix_s(start, -math.inf), _unix_s(end, math.inf), None)
            found.setdefault(job, []).append(life)
        elif found.get(job):
            last = found[job][-1]
            found[job][-1] = replace(last, max_rss_mb=_larger(last.max_rss_mb, _mb(rss)))
    return found


def _unix_s(text: str, unknown: float) -> float:
    return float(text) if text.isdigit() else unknown


def _mb(text: str) -> float | None:
    match = re.fullmatch(r"([0-9.]+)([KMGTP]?)", text)
    return float(match[1]) * UNITS[match[2]] / 1e6 if match else None


def _larger(first: float | None, second: float | None) -> float | None:
    return max((value for value in (first, second) if value is not None), default=None)
