"""The tables with one row per record and per evaluation; and how a column gets its type.

Order of rows: that of the runs given, then attempt, then step. Units stand in column names.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from trainpkg.tables.collect import RunFiles
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
