"""Values of JSON files as cells, and the rows of the table of evaluations."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from trainpkg.tables.files.collect import RunFiles
from trainpkg.tables.files.records import clean, number


def typed(values: Sequence[Any]) -> pd.Series[Any]:
    """A column of the narrowest type that holds all values: boolean, whole, real, else text. None is a gap.

    Parquet knows one type per column, and pandas would turn whole numbers with a gap into reals.
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    if kinds and kinds <= {int, float} and all(type(value) is not int or abs(value) < 2**63 for value in values):
        if kinds == {int}:
            return pd.Series(values, dtype="Int64")
        return pd.Series([math.nan if value is None else float(value) for value in values], dtype="float64")
    return pd.Series([None if value is None else clean(str(value)) for value in values], dtype="string")


def evaluation_rows(one: RunFiles) -> list[dict[str, Any]]:
    """One row per evaluation: `source` is train (metrics.jsonl) or evaluate (evaluation.json); metrics as `eval_*`."""
    rows = [
        {
            **eval_columns(record.metrics), "source": "train", "attempt": record.attempt,
            "generation": record.generation, "step": record.step, "samples": whole(record.samples),
            "time_s": record.time_s,
        }
        for record in one.metrics.evals
    ]  # fmt: skip
    if one.evaluation is not None:
        rows.append({
            **eval_columns(final_metrics(one)), "source": "evaluate", "step": whole(one.evaluation.get("step")),
            "checkpoint": text(one.evaluation.get("checkpoint")),
        })  # fmt: skip
    return rows


def final_metrics(one: RunFiles) -> dict[str, float]:
    """The metrics of evaluation.json, with the number of samples that they are over."""
    document = one.evaluation or {}
    metrics = document.get("metrics")
    found = {clean(name): number(value) for name, value in metrics.items()} if isinstance(metrics, Mapping) else {}
    if "num_samples" in document:
        found.setdefault("num_samples", number(document["num_samples"]))
    return found


def eval_columns(metrics: Mapping[str, float]) -> dict[str, Any]:
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
