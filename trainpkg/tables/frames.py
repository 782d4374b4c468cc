"""The tables with one row per record, per evaluation and per launch; and how a column gets its type.

Order of rows: that of the runs given, then attempt, then step. Units stand in column names.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from trainpkg.tables.collect import Attempt, RunFiles
from trainpkg.tables.records import COLUMN, TRAIN_FIELDS, clean, number

WHOLE_FIELDS = ("attempt", "generation", "step", "skipped_steps", "samples", "tokens")
# Metrics of the built-in tasks come first and in this order, those of users after them by name.
KNOWN_METRICS = (
    "loss", "accuracy", "top5_accuracy", "mean_class_accuracy", "loss_nats_per_byte", "bits_per_byte", "perplexity",
    "unigram_nats_per_byte", "num_samples", "num_tokens",
)  # fmt: skip


def typed(values: Sequence[Any]) -> pd.Series[Any]:
    """A column of the narrowest type that holds all values: boolean, whole, real, else text. None is a gap.

    Parquet knows one type per column, and pandas would turn whole numbers with a gap into reals.
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    if kinds == {int} and all(value is None or abs(value) < 2**63 for value in values):
        return pd.Series(values, dtype="Int64")
    if kinds and kinds <= {int, float}:
        return pd.Series([math.nan if value is None else float(value) for value in values], dtype="float64")
    return pd.Series([None if value is None else clean(str(value)) for value in values], dtype="string")


def frame(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    """Rows as a table: first the columns of `types` in their order, then all others as `typed` ones."""
    others = dict.fromkeys(name for row in rows for name in row if name not in types)
    columns: dict[str, Any] = {
        name: pd.Series([row.get(name) for row in rows], dtype=kind) for name, kind in types.items()
    }
    columns.update({name: typed([row.get(name) for row in rows]) for name in others})
    return pd.DataFrame(columns)


def metric_order(names: set[str]) -> list[str]:
    """Metric names in the order of columns."""
    known = [name for name in KNOWN_METRICS if name in names]
    return known + sorted(names.difference(KNOWN_METRICS))


def steps_table(runs: Sequence[RunFiles]) -> pd.DataFrame:
    """One row per training record. `loss` is a mean over samples and ranks in the unit of the task's loss."""
    blocks = [one.metrics.train for one in runs]
    values = np.concatenate(blocks) if blocks else np.empty((0, len(TRAIN_FIELDS)))
    lengths = [len(block) for block in blocks]
    columns: dict[str, Any] = {}
    for name in ("run", "recipe"):
        labels = np.array([getattr(one, name) for one in runs], dtype=object)
        columns[name] = pd.Series(np.repeat(labels, lengths), dtype="string")
    for name in TRAIN_FIELDS:
        column = pd.Series(values[:, COLUMN[name]])
        whole = name in WHOLE_FIELDS and bool((column.isna() | (column % 1 == 0)).all())
        columns[name] = column.astype("Int64") if whole else column
    return pd.DataFrame(columns)


def evaluations_table(runs: Sequence[RunFiles]) -> pd.DataFrame:
    """One row per evaluation: `source` is train (metrics.jsonl) or evaluate (evaluation.json); metrics as `eval_*`."""
    rows = []
    names: set[str] = set()
    for one in runs:
        for record in one.metrics.evals:
            names.update(record.metrics)
            rows.append({
                "run": one.run, "recipe": one.recipe, "source": "train", "attempt": record.attempt,
                "generation": record.generation, "step": record.step, "samples": whole(record.samples),
                "time_s": record.time_s, **eval_columns(record.metrics),
            })  # fmt: skip
        if one.evaluation is not None:
            metrics = final_metrics(one)
            names.update(metrics)
            rows.append({
                "run": one.run, "recipe": one.recipe, "source": "evaluate", "step": whole(one.evaluation.get("step")),
                "checkpoint": one.evaluation.get("checkpoint"), **eval_columns(metrics),
            })  # fmt: skip
    types = {
        "run": "string", "recipe": "string", "source": "string", "attempt": "Int64", "generation": "Int64",
        "step": "Int64", "checkpoint": "string", "samples": "Int64", "time_s": "float64",
        **{f"eval_{name}": "float64" for name in metric_order(names)},
    }  # fmt: skip
    return frame(rows, types)


def final_metrics(one: RunFiles) -> dict[str, float]:
    """The metrics of evaluation.json, with the number of samples that they are over."""
    document = one.evaluation or {}
    metrics = document.get("metrics")
    found = {clean(name): number(value) for name, value in metrics.items()} if isinstance(metrics, Mapping) else {}
    if "num_samples" in document:
        found.setdefault("num_samples", number(document["num_samples"]))
    return found


def eval_columns(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metric names as column names."""
    return {f"eval_{name}": value for name, value in metrics.items()}


def attempts_table(runs: Sequence[RunFiles]) -> pd.DataFrame:
    """One row per launch: a Slurm job that was requeued has one per life. `gpu_hours` is ranks x hours."""
    rows = [attempt_row(one, attempt) for one in runs for attempt in one.attempts]
    types = {
        "run": "string", "recipe": "string", "attempt": "Int64", "slurm_job_id": "string", "slurm_restarts": "Int64",
        "host": "string", "num_nodes": "Int64", "world_size": "Int64", "start_utc": "string", "end_utc": "string",
        "duration_s": "float64", "gpu_hours": "float64", "num_generations": "Int64", "num_failures": "Int64",
        "step_first": "Int64", "step_last": "Int64", "steps_gained": "Int64", "verdict": "string",
        "exit_status": "Int64", "run_again": "boolean", "cause": "string",
    }  # fmt: skip
    return frame(rows, types)


def attempt_row(one: RunFiles, attempt: Attempt) -> dict[str, Any]:
    """What one launch was, cost and came to. Without a recorded end, the lock's last beat is the last sign of life."""
    facts = attempt.facts
    start, end = number(facts.get("start")), number(facts.get("end"))
    is_last = attempt is one.attempts[-1]
    until = one.lock.beat_unix_s if math.isnan(end) and is_last and one.lock is not None else end
    duration = until - start
    nodes, ranks = topology(one, attempt)
    first, last = whole(facts.get("step_first")), whole(facts.get("step_last"))
    return {
        "run": one.run,
        "recipe": one.recipe,
        "attempt": attempt.number,
        "slurm_job_id": text(facts.get("slurm_job_id")),
        "slurm_restarts": whole(facts.get("restarts")),
        "host": text(facts.get("host")),
        "num_nodes": nodes,
        "world_size": ranks,
        "start_utc": utc(start),
        "end_utc": utc(end),
        "duration_s": duration if duration >= 0 else None,
        "gpu_hours": ranks * duration / 3600 if ranks is not None and duration >= 0 else None,
        "num_generations": attempt.num_generations,
        "num_failures": len(attempt.failures),
        "step_first": first,
        "step_last": last,
        # step_first is the first step that this launch completed.
        "steps_gained": last - first + 1 if first is not None and last is not None else None,
        "verdict": text(facts.get("verdict")),
        "exit_status": whole(facts.get("status")),
        "run_again": facts.get("run_again") if isinstance(facts.get("run_again"), bool) else None,
        "cause": cause_of(attempt),
    }


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


def whole(value: Any) -> int | None:
    """A JSON value as a whole number, None for all else."""
    real = number(value)
    return int(real) if math.isfinite(real) and real == int(real) else None


def text(value: Any) -> str | None:
    """A JSON scalar as text; None for null, objects and lists."""
    return clean(str(value)) if isinstance(value, str | int | float) else None


def utc(unix_s: float) -> str | None:
    """Unix seconds as `2026-03-01T12:00:00Z`; None where it is no date."""
    try:
        return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None
