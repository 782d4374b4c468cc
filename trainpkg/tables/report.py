"""summary.md: what a person wants to know first. Every number in it is from the runs table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from trainpkg.tables.columns import config_columns

STATUSES = ("finished", "running", "failed", "absent")
# A sheet of thousands still gives a page: the tables have them all.
MAX_ROWS = 40
HEADINGS = {
    "run": "run", "status": "status", "world_size": "ranks", "progress": "step", "final_loss": "final loss",
    "best": "best", "evaluated": "evaluated", "samples_per_second": "samples/s",
    "scaling_efficiency_percent": "efficiency %", "gpu_hours": "GPU hours",
}  # fmt: skip


def markdown(runs: pd.DataFrame, no_steps_csv: bool = False) -> str:
    """The page: counts, a table per recipe with the best run first named, failures with their causes, damaged files."""
    parts = ["# Runs", f"{counted(runs['status'].value_counts().to_dict())}. All columns: runs.csv."]
    if (runs["device"] == "cpu").any():
        parts.append("GPU hours are ranks x hours: hours of processes for runs on a CPU.")
    if no_steps_csv:
        parts.append(
            "More training records than a spreadsheet opens: they are in steps.parquet, and steps.csv is empty."
        )
    for recipe in runs["recipe"].drop_duplicates():
        parts += _recipe(str(recipe) or "(unknown recipe)", runs[runs["recipe"] == recipe])
    failed = runs[runs["status"] == "failed"]
    parts += _listed("Failed", [f"**{row.run}**: {_why(row)}" for row in failed.itertuples()])
    noted = runs[runs["notes"].notna() & (runs["status"] != "failed")]
    parts += _listed("Notes", [f"**{row.run}**: {row.notes}" for row in noted.itertuples()])
    return "\n\n".join(parts) + "\n"


def counted(counts: Mapping[Any, int]) -> str:
    """`7 runs: 5 finished, 2 failed`."""
    total = sum(counts.values())
    states = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts.get(status))
    return f"{total} run{'' if total == 1 else 's'}{': ' if states else ''}{states}"


def _why(row: Any) -> str:
    reasons = [row.cause if isinstance(row.cause, str) else "", row.notes if isinstance(row.notes, str) else ""]
    return "; ".join(reason for reason in reasons if reason) or f"verdict {row.last_verdict}, no cause recorded"


def _listed(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    more = [f"and {len(lines) - MAX_ROWS} more in runs.csv"] if len(lines) > MAX_ROWS else []
    return [f"## {title}", "\n".join(f"- {line}" for line in [*lines[:MAX_ROWS], *more])]


def _recipe(name: str, runs: pd.DataFrame) -> list[str]:
    best = runs[(runs["place_in_recipe"] == 1).fillna(False)]
    parts = [f"## {name}"]
    if len(best):
        row = best.iloc[0]
        among = (
            f"{'lowest' if row['best_metric_mode'] == 'min' else 'highest'} of {runs['place_in_recipe'].notna().sum()}"
        )
        value = f"{row['best_metric_name']} {_text(row['best_metric'])} at step {_text(row['best_step'])}"
        parts.append(f"Best: **{row['run']}**, {value} ({among}).")
    shown = runs.head(MAX_ROWS)
    rows = shown.to_dict("records")
    cells = pd.DataFrame({heading: [_cell(row, key) for row in rows] for key, heading in HEADINGS.items()})
    varied = _varied(runs)
    for position, key in enumerate(varied, start=1):
        cells.insert(position, key, [_text(value) for value in shown[key]], allow_duplicates=True)
    cells = cells.loc[:, (cells != "").any()]
    # tabulate would read `1e-05` and run names such as `007` as numbers and reformat them.
    parts.append(cells.to_markdown(index=False, disable_numparse=True))
    if len(runs) > MAX_ROWS:
        parts.append(f"… and {len(runs) - MAX_ROWS} more in runs.csv.")
    return parts


def _varied(runs: pd.DataFrame) -> list[str]:
    """What differs within the recipe of what was asked for, at most four: what tells its runs apart."""
    return [name for name in config_columns(runs) if runs[name].nunique(dropna=False) > 1][:4]


def _cell(row: Mapping[Any, Any], key: str) -> str:
    if key == "progress":
        step, of = _text(row["step"]), _text(row["max_steps"])
        return f"{step}/{of}" if step and of else step
    if key == "best":
        value = _text(row["best_metric"])
        return f"{row['best_metric_name']} {value}" if value else ""
    if key == "evaluated":
        if nats := _text(row.get("eval_loss_nats_per_byte")):
            unigram = _text(row.get("eval_unigram_nats_per_byte"))
            return f"{nats} nats/byte (byte frequencies alone: {unigram})"
        names = [name for name in ("eval_accuracy", "eval_loss") if _text(row.get(name))]
        return f"{names[0][5:]} {_text(row[names[0]])}" if names else ""
    return _text(row[key])


def _text(value: Any) -> str:
    """A cell for reading: four digits of a real number, nothing for a gap."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
