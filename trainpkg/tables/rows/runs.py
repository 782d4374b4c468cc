"""The row of one run: its state, what it came to and what it cost.

No run is dropped: failed, running and absent ones are rows with their status.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainpkg.tables.files.collect import RunFiles
from trainpkg.tables.files.records import Metrics, clean, number
from trainpkg.tables.rows import costs
from trainpkg.tables.rows.attempts import cause_of, topology, total
from trainpkg.tables.rows.frames import eval_columns, final_metrics, text, whole

# A holder beats every few seconds; without a beat for so long it is taken for dead.
FRESH_S = 90.0


def status_of(one: RunFiles, now_s: float) -> tuple[str, str | None]:
    """The status and, where it needs one, a note.

    finished: train.json is there (of another fingerprint it does not count: then the run is absent). running: the last
    attempt has no end and the lock's beat is fresh, or it ended to be run again. failed: it ended otherwise, or nobody
    recorded an end and the lock is stale. absent: nothing was started.
    """
    if _is_finished(one):
        return "finished", None
    beating = one.lock is not None and now_s - _last_beat(one) <= FRESH_S
    if not one.attempts:
        return ("running" if beating else "absent"), None
    last = one.attempts[-1]
    verdict = last.facts.get("verdict")
    if math.isnan(number(last.facts.get("end"))):
        return ("running", None) if beating else ("failed", f"no end was recorded of attempt {last.number}")
    if verdict == "again":
        waits = "stopped and saved, to be run again; where no job is queued, start the workflow once more"
        return "running", None if beating else f"attempt {last.number} {waits}"
    if verdict == "finished":
        return "failed", f"attempt {last.number} says finished, but train.json does not"
    return "failed", None


def is_settled(one: RunFiles) -> bool:
    """Whether its row follows from its files alone: neither the clock nor the sheet's config has a say in it."""
    last = one.attempts[-1].facts if one.attempts else {}
    ended = not math.isnan(number(last.get("end"))) and last.get("verdict") != "again"
    return one.has_own_config and (_is_finished(one) or ended)


def _is_finished(one: RunFiles) -> bool:
    return one.train is not None and one.train.get("status", "finished") == "finished"


def _last_beat(one: RunFiles) -> float:
    """The newer of the two signs of life: clocks of nodes and of file servers differ."""
    if one.lock is None:
        return -math.inf
    return float(np.nanmax([one.lock.beat_unix_s, one.lock.mtime_unix_s]))


def run_row(one: RunFiles, attempts: Sequence[Mapping[str, Any]], now_s: float) -> dict[str, Any]:
    """The run's cells but for those that only all runs together say, and but for the config's.

    `attempts` are its rows of that table; `now_s` (unix seconds) decides whether a lock's beat is fresh.
    """
    status, why = status_of(one, now_s)
    train = one.train or {}
    nodes, ranks = topology(one)
    notes = [*one.notes, *([why] if why else [])]
    unknown = sum(row["gpu_hours"] is None for row in attempts)
    if unknown:
        notes.append(f"gpu_hours leaves out {unknown} of {len(attempts)} attempts: times or ranks unknown")
    last = one.attempts[-1] if one.attempts else None
    row = {
        "run": one.run,
        "recipe": one.recipe,
        "status": status,
        "strategy": text(train.get("strategy")) or _strategy_asked(one, ranks),
        "device": text(train.get("device")) or (text(last.plan.get("device")) if last else None) or _device_asked(one),
        "gpu": text(train.get("device_name")),
        "world_size": ranks,
        "num_nodes": nodes,
        "num_parameters": whole(train.get("num_parameters")),
        "max_steps": whole(one.config.get("train.max_steps")),
        **_progress(one.metrics, train),
        **_evaluation(one),
        **_speed(one.metrics, train, ranks),
        "gpu_hours": total(attempts, "gpu_hours"),
        "currency": text(one.config.get("slurm.currency")) or None,
        "hours_lost_to_restarts": total(attempts, "hours_lost"),
        "num_attempts": len(one.attempts),
        "num_failures": sum(len(attempt.failures) for attempt in one.attempts),
        "last_verdict": text(last.facts.get("verdict")) if last else None,
        # What a finished run overcame on its way is in the attempts table.
        "cause": cause_of(last) if last and status != "finished" else None,
        "num_records": len(one.metrics.train) + len(one.metrics.evals),
        "num_overwritten_records": one.metrics.num_overwritten,
        "num_nonfinite_records": one.metrics.num_nonfinite,
        "num_bad_records": one.metrics.num_bad,
        "notes": clean("; ".join(notes)) or None,
    }
    row["cost"] = costs.cost(row["gpu_hours"], one.config)
    row["mfu_percent"] = costs.mfu_percent(row, one.config)
    return row


def _strategy_asked(one: RunFiles, ranks: int | None) -> str | None:
    """Left out it follows from the number of ranks, so that a run that failed is not of another kind than its peers."""
    nodes, gpus = (whole(one.config.get(f"launch.{name}")) for name in ("nodes", "gpus_per_node"))
    if ranks is None and nodes is not None:
        ranks = nodes * gpus if gpus is not None else (nodes if _device_asked(one) == "cpu" else None)
    usual = None if ranks is None or "model.name" not in one.config else "ddp" if ranks > 1 else "single"
    return text(one.config.get("strategy")) or usual


def _device_asked(one: RunFiles) -> str | None:
    device = text(one.config.get("launch.device"))
    return None if device == "auto" else device


def _progress(metrics: Metrics, train: Mapping[str, Any]) -> dict[str, Any]:
    """Where training stands: by train.json, else by the newest attempt's last record.

    An older attempt may have got further than the checkpoint that the newest one started from.
    """
    best, final = (part if isinstance(part := train.get(key), dict) else {} for key in ("best", "final"))
    return {
        "step": whole(train.get("steps")) if "steps" in train else whole(_last(metrics, "step")),
        # `loss` beside it is the held-out one.
        "final_loss": number(final["train_loss"]) if "train_loss" in final else _last(metrics, "loss"),
        "best_metric_name": text(best.get("metric")),
        "best_metric_mode": text(best.get("mode")),
        "best_metric": number(best.get("value")),
        "best_step": whole(best.get("step")),
        "memory_mb": number(train["memory_mb"]) if "memory_mb" in train else _largest(metrics, "memory_mb"),
        "train_time_s": number(train["train_time_s"]) if "train_time_s" in train else _largest(metrics, "time_s"),
    }


def _evaluation(one: RunFiles) -> dict[str, Any]:
    """The metrics of evaluation.json (`eval_source` evaluate), else those of training's last evaluation (train)."""
    if one.evaluation is not None:
        step = whole(one.evaluation.get("step"))
        return {**eval_columns(final_metrics(one)), "eval_source": "evaluate", "eval_step": step}
    if one.metrics.evals:
        last = max(one.metrics.evals, key=lambda record: (record.attempt, record.generation, record.step))
        return {**eval_columns(last.metrics), "eval_source": "train", "eval_step": last.step}
    return {}


def _speed(metrics: Metrics, train: Mapping[str, Any], ranks: int | None) -> dict[str, Any]:
    """Median throughput over the records of the last attempt; the first of each generation warms up and is left out
    where others are. Where no record says it, train.json's own median."""
    speed: dict[str, Any] = {}
    attempts, generations = metrics.column("attempt"), metrics.column("generation")
    last = attempts == attempts.max(initial=-1.0)
    warm = last.copy()
    warm[:1] = False
    warm[1:] &= (attempts[1:] == attempts[:-1]) & (generations[1:] == generations[:-1])
    chosen = warm if warm.any() else last
    for name in ("samples_per_second", "tokens_per_second"):
        values = metrics.column(name)[chosen]
        values = values[np.isfinite(values)]
        # numpy's median takes ten times as long for a hundred values
        value = statistics.median(values.tolist()) if len(values) else number(train.get(name))
        speed[name] = value
        speed[f"{name}_per_rank"] = value / ranks if ranks else None
    return speed


def _last(metrics: Metrics, name: str) -> float | None:
    values = metrics.column(name)[metrics.last_generation()]
    return float(values[-1]) if len(values) else None


def _largest(metrics: Metrics, name: str) -> float | None:
    values = metrics.column(name)
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else None
