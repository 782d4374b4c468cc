"""Which pages the report shows, and what is said above each."""

from __future__ import annotations

import pandas as pd

from trainpkg.tables.assemble import Tables
from trainpkg.tables.pages.evidence import failures_table, plan_table
from trainpkg.tables.pages.page import page
from trainpkg.tables.variants import varied

# What a person compares runs by; all other columns are in runs.csv and runs.parquet.
COMPARED = (
    "device", "gpu", "world_size", "step", "max_steps", "final_loss", "best_metric_name", "best_metric", "best_step",
    "place_in_recipe", "EVALUATED", "samples_per_second", "tokens_per_second", "scaling_efficiency_percent",
    "mfu_percent", "memory_mb", "train_time_s", "gpu_hours", "cost", "currency", "hours_lost_to_restarts",
    "num_attempts", "num_failures", "cause", "notes",
)  # fmt: skip
MAX_KEYS = 12


def pages(tables: Tables, smoke: pd.DataFrame) -> dict[str, bytes]:
    """File name -> page."""
    runs, attempts = tables.runs, tables.attempts
    failures = failures_table(runs, attempts)
    return {
        "runs.html": page(
            "Runs", "One row per run, with config keys that differ within a recipe. Units stand in columns' names.",
            runs[_compared(runs)], "runs.csv",
        ),
        "seeds.html": page(
            "Seeds", "One row per group of runs that differ in their seed alone: mean, standard deviation and number.",
            tables.seeds, "seeds.csv",
        ),
        "attempts.html": page(
            "Attempts", "One row per launch: a Slurm job that was requeued has one per life.", attempts, "attempts.csv",
        ),
        "failures.html": page(
            "Failures", _none(failures, "No attempt failed.") or "Attempts that failed, or restarted their ranks.",
            failures, "attempts.csv",
        ),
        "plan.html": page(
            "Plan", "Where each run's newest launch placed its ranks, beside what its config asks for.",
            plan_table(runs, attempts), "attempts.csv",
        ),
        "smoke.html": page(
            "Smoke tests", _none(smoke, "No smoke test has run.") or "One row per topology and check.", smoke,
            "smoke/*.json",
        ),
    }  # fmt: skip


def _none(table: pd.DataFrame, sentence: str) -> str:
    return sentence if table.empty else ""


def _compared(runs: pd.DataFrame) -> list[str]:
    evaluated = [name for name in runs.columns if name.startswith("eval_") and name not in ("eval_source", "eval_step")]
    # Recipes differ in all kinds of keys: a row is told apart by those that differ within its own.
    anywhere = varied(runs)
    by_recipe = runs.groupby("recipe")
    within = [key for key in anywhere if by_recipe[key].nunique(dropna=False).gt(1).any()]
    keys = [*within[:MAX_KEYS], *(["seed"] if "seed" in runs and runs["seed"].nunique() > 1 else [])]
    names = ["run", "recipe", "status", *keys]
    for name in COMPARED:
        names += evaluated if name == "EVALUATED" else [name]
    return [name for name in dict.fromkeys(names) if name in runs.columns]
