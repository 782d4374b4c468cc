"""Which columns the tables have, in which order and of which type. Units stand in the names."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

# Config columns of the CSV and the summary even where all runs agree; all others only where runs differ.
SHORT_LIST = (
    "task", "model.name", "data.name", "launch.nodes", "launch.gpus_per_node", "optim.name", "optim.lr",
    "train.global_batch", "train.max_steps", "train.precision", "seed",
)  # fmt: skip
BEFORE_CONFIG = {
    "run": "string", "recipe": "string", "status": "string", "in_sheet": "boolean", "strategy": "string",
}  # fmt: skip
OUTCOME = {
    "device": "string", "gpu": "string", "world_size": "Int64", "num_nodes": "Int64", "num_parameters": "Int64",
    "step": "Int64", "max_steps": "Int64", "final_loss": "float64", "best_metric_name": "string",
    "best_metric_mode": "string", "best_metric": "float64", "best_step": "Int64", "place_in_recipe": "Int64",
    "eval_source": "string", "eval_step": "Int64",
}  # fmt: skip
COST = {
    "samples_per_second": "float64", "tokens_per_second": "float64", "samples_per_second_per_rank": "float64",
    "tokens_per_second_per_rank": "float64", "scaling_kind": "string", "scaling_series": "string",
    "scaling_base_world_size": "Int64", "scaling_efficiency_percent": "float64", "mfu_percent": "float64",
    "memory_mb": "float64", "train_time_s": "float64", "gpu_hours": "float64", "cost": "float64",
    "currency": "string", "hours_lost_to_restarts": "float64", "num_attempts": "Int64", "num_failures": "Int64",
    "last_verdict": "string", "cause": "string", "num_records": "Int64", "num_overwritten_records": "Int64",
    "num_nonfinite_records": "Int64", "num_bad_records": "Int64", "notes": "string",
}  # fmt: skip
RUN = {**BEFORE_CONFIG, **OUTCOME, **COST}
# What is known only once all runs are.
OF_ALL_RUNS = frozenset({
    "in_sheet", "place_in_recipe", "scaling_kind", "scaling_series", "scaling_base_world_size",
    "scaling_efficiency_percent",
})  # fmt: skip
EVALUATION = {
    "source": "string", "attempt": "Int64", "generation": "Int64", "step": "Int64", "checkpoint": "string",
    "samples": "Int64", "time_s": "float64",
}  # fmt: skip
ATTEMPT = {
    "attempt": "Int64", "slurm_job_id": "string", "slurm_restarts": "Int64", "host": "string", "num_nodes": "Int64",
    "world_size": "Int64", "ranks_per_node": "string", "hosts": "string", "master": "string",
    "start_utc": "string", "end_utc": "string", "start_unix_s": "float64",
    "duration_s": "float64", "wait_s": "float64", "gpu_hours": "float64", "num_generations": "Int64",
    "num_failures": "Int64", "step_first": "Int64", "step_last": "Int64", "steps_gained": "Int64",
    "steps_lost": "Int64", "hours_lost": "float64", "verdict": "string", "exit_status": "Int64",
    "run_again": "boolean", "cause": "string", "sacct_state": "string", "sacct_elapsed_s": "Int64",
    "sacct_max_rss_mb": "float64",
}  # fmt: skip
# Of a training record, whole numbers where all are.
WHOLE_STEPS = ("attempt", "generation", "step", "skipped_steps", "samples", "tokens")
# Metrics of the built-in tasks come first and in this order, those of users after them by name.
KNOWN_METRICS = (
    "loss", "accuracy", "top5_accuracy", "mean_class_accuracy", "loss_nats_per_byte", "bits_per_byte", "perplexity",
    "unigram_nats_per_byte", "num_samples", "num_tokens",
)  # fmt: skip


def metric_columns(names: Iterable[str]) -> list[str]:
    """The columns of metrics among `names`, in their order."""
    found = {name.removeprefix("eval_") for name in names if name.startswith("eval_")} - {"source", "step"}
    known = [name for name in KNOWN_METRICS if name in found]
    return [f"eval_{name}" for name in [*known, *sorted(found.difference(KNOWN_METRICS))]]


def config_columns(runs: pd.DataFrame) -> list[str]:
    """What was asked for: the strategy and all keys of the config."""
    return [name for name in runs.columns if name == "strategy" or not (name in RUN or name.startswith("eval_"))]


def short_columns(runs: pd.DataFrame) -> list[str]:
    """The columns for reading: of the config only the short list and the keys whose values differ between runs."""
    config = config_columns(runs)[1:]
    outcome = [name for name in runs.columns if name not in BEFORE_CONFIG and name not in config]
    # A directory without a config says nothing, and so makes no difference.
    known = runs[runs[config].notna().any(axis=1)] if config else runs
    shown = [name for name in SHORT_LIST if name in config]
    shown += [name for name in config if name not in SHORT_LIST and known[name].nunique(dropna=False) > 1]
    return [*BEFORE_CONFIG, *shown, *outcome]
