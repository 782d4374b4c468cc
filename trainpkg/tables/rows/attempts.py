"""The table with one row per launch: what it was, what it came to, what it gained and what it lost.

A launch gains the steps that are still there afterwards. It loses those that the next launch did again, because no
checkpoint had them, and the time that a start costs which would not have been without the end before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainpkg.tables.files.collect import Attempt, RunFiles
from trainpkg.tables.files.records import clean, number
from trainpkg.tables.rows.frames import text, utc, whole
from trainpkg.tables.rows.layout import layout


def attempt_rows(one: RunFiles) -> list[dict[str, Any]]:
    """A run's launches in order. `gpu_hours` is ranks x hours; `wait_s` passed since the end of the launch before."""
    rows = [_row(one, attempt) for attempt in one.attempts]
    step_s = seconds_per_step(one)
    ended = math.nan
    for index, (row, attempt) in enumerate(zip(rows, one.attempts, strict=True)):
        start = number(attempt.facts.get("start"))
        row["wait_s"] = start - ended if start >= ended else None
        ended = number(attempt.facts.get("end"))
        following = [later["step_first"] for later in rows[index + 1 :] if later["step_first"] is not None]
        _gains(row, _kept(row, attempt, following[0] if following else None))
        row["hours_lost"] = _hours_lost(row, attempt, step_s, is_restart=index > 0 or attempt.num_generations > 1)
    return rows


def _row(one: RunFiles, attempt: Attempt) -> dict[str, Any]:
    """Without a recorded end, the lock's last beat is the last sign of life."""
    facts = attempt.facts
    start, end = number(facts.get("start")), number(facts.get("end"))
    is_last = attempt is one.attempts[-1]
    until = one.lock.beat_unix_s if math.isnan(end) and is_last and one.lock is not None else end
    duration = until - start
    nodes, ranks = topology(one, attempt)
    return {
        "attempt": attempt.number,
        "slurm_job_id": text(facts.get("slurm_job_id")),
        "slurm_restarts": whole(facts.get("restarts")),
        "host": text(facts.get("host")),
        **layout(attempt.plan),
        "num_nodes": nodes,
        "world_size": ranks,
        "start_utc": utc(start),
        "end_utc": utc(end),
        "start_unix_s": start,
        "duration_s": duration if duration >= 0 else None,
        "gpu_hours": ranks * duration / 3600 if ranks is not None and duration >= 0 else None,
        "num_generations": attempt.num_generations,
        "num_failures": len(attempt.failures),
        "step_first": whole(facts.get("step_first")),
        "step_last": whole(facts.get("step_last")),
        "verdict": text(facts.get("verdict")),
        "exit_status": whole(facts.get("status")),
        "run_again": facts.get("run_again") if isinstance(facts.get("run_again"), bool) else None,
        "cause": cause_of(attempt),
    }


def _kept(row: Mapping[str, Any], attempt: Attempt, next_first: int | None) -> int | None:
    """The last step of this launch that is still there: by where the next one began, else by its newest checkpoint."""
    last: int | None = row["step_last"]
    if last is None or row["verdict"] == "finished":
        return last
    if next_first is not None:
        return min(last, next_first - 1)
    saved = whole(attempt.facts.get("saved_after"))
    return last if saved is None else min(last, saved)


def _gains(row: dict[str, Any], kept: int | None) -> None:
    first, last = row["step_first"], row["step_last"]
    if first is None or last is None or kept is None or last < first:
        row["steps_gained"] = row["steps_lost"] = None
        return
    row["steps_gained"] = max(0, kept - first + 1)
    row["steps_lost"] = last - first + 1 - row["steps_gained"]


def _hours_lost(row: Mapping[str, Any], attempt: Attempt, step_s: float, is_restart: bool) -> float | None:
    """Of a restart all but the steps gained; of a run's first start only the steps lost, since every run has one.

    None where nobody knows: no end was recorded, or the program counts no steps.
    """
    if row["verdict"] == "finished" and not is_restart:
        return 0.0
    if row["duration_s"] is None or not attempt.facts.get("counts_steps", True):
        return None
    if is_restart or not row["steps_gained"]:
        gained_s = step_s * row["steps_gained"] if row["steps_gained"] else 0.0
        lost_s = row["duration_s"] - gained_s
    else:
        lost_s = step_s * row["steps_lost"] if row["steps_lost"] else 0.0
    return None if math.isnan(lost_s) else max(0.0, lost_s / 3600)


def seconds_per_step(one: RunFiles) -> float:
    """Mean wall time of a step that is still there, with evaluating and saving; NaN where nothing says it."""
    train = one.train or {}
    steps, time_s = number(train.get("steps")), number(train.get("time_s"))
    if math.isnan(steps) or math.isnan(time_s):
        newest = one.metrics.last_generation()
        if not newest.any():
            return math.nan
        steps, time_s = one.metrics.column("step")[newest][-1], one.metrics.column("time_s")[newest][-1]
    return float(time_s / steps) if steps > 0 else math.nan


def topology(one: RunFiles, attempt: Attempt | None = None) -> tuple[int | None, int | None]:
    """Nodes and ranks of a run by its train.json, else by its newest launch; of one attempt by its own plan first."""
    launches = reversed(one.attempts) if attempt is None else (attempt,)
    sources: list[Mapping[str, Any]] = [part for launch in launches for part in (launch.plan, launch.facts)]
    sources.insert(0 if attempt is None else len(sources), one.train or {})
    nodes = [count for source in sources if (count := _node_count(source)) is not None]
    ranks = [count for source in sources if (count := whole(source.get("world_size"))) is not None]
    return nodes[0] if nodes else None, ranks[0] if ranks else None


def _node_count(source: Mapping[str, Any]) -> int | None:
    nodes = source.get("nodes")
    return len(nodes) if isinstance(nodes, list) else whole(source.get("num_nodes"))


def cause_of(attempt: Attempt) -> str | None:
    """One sentence on what ended an attempt: attempt.json's, else that of its newest failure.json."""
    for document in (attempt.facts, *reversed(attempt.failures)):
        for key in ("cause", "sentence", "message"):
            value = document.get(key)
            if isinstance(value, str) and value.strip():
                return clean(" ".join(value.split()))
    return None


def total(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The sum over a run's launches of what is known; None where nothing is."""
    known = [row[name] for row in rows if row[name] is not None]
    return math.fsum(known) if known else None
