"""The table of runs that differ in nothing but their seed: mean, standard deviation and number of each result."""

from __future__ import annotations

import pandas as pd

from trainpkg.tables.columns import config_columns

# Of a number that a run either has or lacks; only finished runs count, since others stopped somewhere on the way.
MEASURED = (
    "final_loss", "best_metric", "samples_per_second", "tokens_per_second", "memory_mb", "train_time_s", "gpu_hours",
    "mfu_percent",
)  # fmt: skip
SUMMED = ("gpu_hours", "cost", "hours_lost_to_restarts")


def seeds_table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per recipe and config without its seed, in the order of each one's first run, also where it is alone.

    `runs` is the whole runs table. Columns: the config keys that differ between runs, num_runs, num_finished, seeds;
    for each result NAME_mean, NAME_std (of the sample; empty for one run), NAME_num; sums over all runs as total_NAME.
    """
    config = [name for name in config_columns(runs) if name != "seed"]
    varying = [name for name in config if runs[name].nunique(dropna=False) > 1]
    names = [name for name in runs.columns if name in MEASURED or (name.startswith("eval_") and _is_real(runs, name))]
    group = runs.groupby(["recipe", *varying], dropna=False, sort=False).ngroup() if len(runs) else pd.Series(dtype=int)
    firsts = runs.loc[~group.duplicated()]
    table = firsts[["recipe", *varying]].reset_index(drop=True)
    table.insert(0, "first_run", firsts["run"].to_numpy())
    table["first_run"] = table["first_run"].astype("string")
    by_group = runs.groupby(group.to_numpy(), sort=False)
    table["num_runs"] = by_group.size().to_numpy()
    table["num_finished"] = (runs["status"] == "finished").groupby(group.to_numpy(), sort=False).sum().to_numpy()
    if "seed" in runs:
        seeds = (
            runs["seed"].astype("string").fillna("").astype(object).groupby(group.to_numpy(), sort=False).agg(" ".join)
        )
        table["seeds"] = seeds.astype("string").to_numpy()
    metric = runs["best_metric_name"].groupby(group.to_numpy(), sort=False).first()
    table["best_metric_name"] = metric.astype("string").to_numpy()
    finished = runs[names].where(runs["status"] == "finished")
    results = finished.groupby(group.to_numpy(), sort=False)
    means, stds, counts = results.mean(), results.std(ddof=1), results.count()
    for name in names:
        table[f"{name}_mean"] = means[name].to_numpy()
        table[f"{name}_std"] = stds[name].to_numpy()
        table[f"{name}_num"] = counts[name].to_numpy()
    sums = runs[list(SUMMED)].groupby(group.to_numpy(), sort=False).sum(min_count=1)
    for name in SUMMED:
        table[f"total_{name}"] = sums[name].to_numpy()
    return table


def _is_real(runs: pd.DataFrame, name: str) -> bool:
    return bool(pd.api.types.is_float_dtype(runs[name]))
