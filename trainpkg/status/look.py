"""Where each run stands, from its files and from Slurm's queue. Only what is new or unfinished is read again.

Of a run that is being trained the end of metrics.jsonl is read, never the whole; what counts as finished, failed and
running is the tables' own definition.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainpkg.launch.slurm.queue import QueuedJob
from trainpkg.sheet import Sheet
from trainpkg.tables.files.collect import Attempt, Lock, RunFiles
from trainpkg.tables.files.records import Metrics, number, parse
from trainpkg.tables.rows.attempts import cause_of
from trainpkg.tables.rows.runs import status_of

TAIL_BYTES = 16_384  # some 40 records
# what a module's rules are called by stands before `train`, and of a shared job behind its name
OF_A_MODULE = r"^rule_(train-[^_]+_)?+(?!train(?:_wildcards_|$)).+?_(?=train(?:_wildcards_|$))"
STATES = ("running", "starting", "queued", "stopped", "failed", "absent", "finished")


@dataclass(frozen=True)
class Standing:
    """One run now. `eta_s` is the time left, `rate` per second in `unit`; None and empty where nothing is known."""

    run: str
    state: str
    job: str = ""
    job_words: str = ""
    step: int | None = None
    max_steps: int | None = None
    eta_s: float | None = None
    loss: float | None = None
    rate: float | None = None
    unit: str = ""
    verdict: str = ""


class Observer:
    """Looks at all runs of a sheet, again and again."""

    def __init__(self, sheet: Sheet, results_dir: Path | None = None) -> None:
        self._runs = sheet.runs
        self._dir = (sheet.results_dir if results_dir is None else results_dir) / "runs"
        self._shared = sheet.shared_jobs()
        self._finished: dict[str, tuple[tuple[int, int], Standing]] = {}

    def look(self, jobs: Iterable[QueuedJob] | None, now_s: float) -> list[Standing]:
        """All runs, in the sheet's order; `jobs` None: Slurm does not say."""
        by_id = {job.job: job for job in jobs or ()}
        by_comment = {re.sub(OF_A_MODULE, r"rule_\1", job.comment): job for job in jobs or () if job.comment}
        found = []
        for name in self._runs:
            standing = self._finished_before(name) or self._read(name, now_s)
            if standing.state != "finished":
                job = by_id.get(standing.job) or self._submitted(name, by_comment)
                standing = with_job(standing, job, jobs is not None)
            found.append(standing)
        return found

    def _submitted(self, name: str, by_comment: Mapping[str, QueuedJob]) -> QueuedJob | None:
        """The job that the workflow has submitted for this run: it says so in its comment."""
        own = by_comment.get(f"rule_train_wildcards_{name}")
        return own or by_comment.get(f"rule_train-{self._shared.get(name)}_train")

    def _finished_before(self, name: str) -> Standing | None:
        known = self._finished.get(name)
        return known[1] if known and known[0] == _stamp(self._dir / name / "train.json") else None

    def _read(self, name: str, now_s: float) -> Standing:
        run, path = self._runs[name], self._dir / name
        max_steps = None if run.own_program else run.train.max_steps
        stamp = _stamp(path / "train.json")
        train = _json(path / "train.json") or _json(path / "finished.json")
        holds = (train or {}).get("fingerprint")
        if holds is not None and holds != run.fingerprint():
            why = "its directory holds what was trained with other keys; a new start moves that aside"
            return Standing(name, "absent", max_steps=max_steps, verdict=why)
        attempts = () if train else _last_attempt(path / "launch")
        lock = None if train else _lock(path / "lock")
        metrics = _tail(path / "metrics.jsonl")
        beat, holder = lock or (None, "")
        files = RunFiles(name, run.recipe, True, {}, train=train, attempts=attempts, lock=beat)
        status, why_so = status_of(files, now_s)
        standing = replace(_progress(metrics, name, max_steps), state=status, job=holder or _job_of(attempts))
        if status == "finished":
            standing = replace(standing, eta_s=None, job="", step=max_steps or standing.step)
            if stamp is not None:
                self._finished[name] = stamp, standing
        elif attempts:
            said = cause_of(attempts[-1]) or why_so or str(attempts[-1].facts.get("verdict") or "")
            standing = replace(standing, verdict=said)
            if attempts[-1].facts.get("verdict") == "again":
                standing = replace(standing, state="stopped")
        return standing


def with_job(standing: Standing, job: QueuedJob | None, asked: bool) -> Standing:
    """What the queue adds: a run that waits in it is queued, whatever ended before."""
    if job is None:
        lost = asked and standing.job and standing.state == "running"
        return replace(standing, job_words="not in the queue" if lost else "", eta_s=_if_running(standing))
    state = standing.state
    if job.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"):
        state = "queued"
    elif job.state in ("RUNNING", "CONFIGURING") and state in ("absent", "failed", "stopped"):
        state = "starting"
    standing = replace(standing, state=state, job=job.job, job_words=job.words)
    return replace(standing, eta_s=_if_running(standing))


def _if_running(standing: Standing) -> float | None:
    return standing.eta_s if standing.state == "running" else None


def _progress(metrics: Metrics, name: str, max_steps: int | None) -> Standing:
    """From the records of the newest attempt's newest generation alone."""
    newest = metrics.last_generation()
    if not newest.any():
        return Standing(name, "", max_steps=max_steps)

    def last(column: str) -> float | None:
        value = float(metrics.column(column)[newest][-1])
        return None if math.isnan(value) else value

    steps, times = metrics.column("step")[newest], metrics.column("time_s")[newest]
    # Wall time over the last records: what evaluating and saving take is part of what is left.
    pace_s = (times[-1] - times[0]) / (steps[-1] - steps[0]) if len(steps) > 1 else last("step_time_s")
    left = None if max_steps is None else max_steps - steps[-1]
    tokens = last("tokens_per_second")
    return Standing(
        run=name, state="", step=int(steps[-1]), max_steps=max_steps, loss=last("loss"),
        eta_s=None if left is None or pace_s is None or math.isnan(pace_s) else float(left * pace_s),
        rate=last("samples_per_second") if tokens is None else tokens, unit="samples" if tokens is None else "tokens",
    )  # fmt: skip


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None for all else, since a file may be written at this moment."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _numbers(path: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(path) if name.isascii() and name.isdigit())  # noqa: PTH208
    except OSError:
        return []


def _last_attempt(launch_dir: Path) -> tuple[Attempt, ...]:
    attempts = _numbers(launch_dir)
    if not attempts:
        return ()
    path = launch_dir / str(attempts[-1])
    generations = _numbers(path)
    failures = [_json(path / str(generation) / "failure.json") for generation in generations[-1:]]
    facts = _json(path / "attempt.json") or {}
    return (Attempt(attempts[-1], facts, {}, len(generations), tuple(one for one in failures if one)),)


def _lock(path: Path) -> tuple[Lock, str] | None:
    """The lock, and the Slurm job that it names."""
    try:
        mtime_unix_s = path.stat().st_mtime
    except OSError:
        return None
    content = _json(path) or {}
    return Lock(number(content.get("beat_unix_s")), mtime_unix_s), str(content.get("job") or "")


def _job_of(attempts: tuple[Attempt, ...]) -> str:
    return str(attempts[-1].facts.get("slurm_job_id") or "") if attempts else ""


def _tail(path: Path) -> Metrics:
    """The last records. What the first of these bytes belong to is left out, unless the file begins there."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            begin = stream.seek(max(0, size - TAIL_BYTES))
            content = stream.read()
    except OSError:
        return Metrics()
    return parse(content if begin == 0 else content[content.find(b"\n") + 1 :])
