"""Which runs may be compared for scaling, and how efficient each is.

Efficiency compares throughput per rank, so a fair comparison needs runs that do the same work on the same kind of
device. Two runs are comparable when recipe, device and all config keys are equal except

- those that are the scaling itself: `launch.*` (but not `launch.backend`, `launch.dist_backend`, `launch.env` and
  `launch.preset`), `slurm.*` (but not `slurm.gpu_type` and `slurm.constraint`), `train.global_batch`;
- those that do not change the work of a step: `seed`, `optim.*` (but not `optim.name`), `train.max_steps`,
  `checkpoint.*`, `logging.*`, `evaluate.*`, `smoke.*`.

One process (`single`) counts as `ddp` on one rank. Among comparable runs a run is measured

- weakly: against those with the same number of samples per rank and step, where these have several world sizes;
- else strongly: against those with the same number of samples per step over all ranks, where these do;
- else not at all: an efficiency of 100 percent without anything to compare with would say nothing.

The base is the median throughput per rank of the runs of the smallest world size there; by definition it has 100
percent (several seeds: their median has).
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

FREE_KEYS = frozenset({"seed", "train.max_steps", "train.global_batch"})
FREE_SECTIONS = ("launch.", "slurm.", "optim.", "checkpoint.", "logging.", "evaluate.", "smoke.")
BINDING_KEYS = frozenset({
    "launch.backend", "launch.dist_backend", "launch.env", "launch.preset", "slurm.gpu_type", "slurm.constraint",
    "optim.name",
})  # fmt: skip


def scaling(runs: pd.DataFrame, config: Sequence[str]) -> pd.DataFrame:
    """The columns scaling_*, one row per run. `config`: the columns of `runs` that are keys of the config.

    `scaling_series` names the comparison uniquely within the recipe: `fsdp, 32/rank`, `ddp, 256/step`.
    """
    keys = [key for key in config if key in BINDING_KEYS or not (key in FREE_KEYS or key.startswith(FREE_SECTIONS))]
    measured = runs["world_size"].gt(0).fillna(False) & runs["samples_per_second"].gt(0)
    its = runs.loc[measured, ["recipe", "strategy", "device", *keys]].copy()
    its["strategy"] = its["strategy"].fillna("ddp").replace("single", "ddp")
    work = ["strategy", "device", *(key for key in keys if key not in ("strategy", "device"))]
    work = [key for key in work if its[key].nunique(dropna=False) > 1]
    group = its.groupby(["recipe", *work], dropna=False, sort=False).ngroup() if len(its) else pd.Series(dtype=int)
    names = pd.Series(_names(its.loc[~group.duplicated(), ["recipe", *work]]), dtype=object)
    series = pd.DataFrame({
        "group": group, "name": names.reindex(group).to_numpy(), "ranks": runs.loc[measured, "world_size"].astype(int),
        "per_rank": runs.loc[measured, "samples_per_second"] / runs.loc[measured, "world_size"].astype(float),
        "batch": _batch(runs)[measured],
    })  # fmt: skip
    found = pd.DataFrame({
        "scaling_kind": pd.Series(None, index=runs.index, dtype="string"),
        "scaling_series": series["name"].where(series["name"] != "").reindex(runs.index).astype("string"),
        "scaling_base_world_size": pd.Series(None, index=runs.index, dtype="Int64"),
        "scaling_efficiency_percent": pd.Series(float("nan"), index=runs.index),
    })  # fmt: skip
    for kind in ("strong", "weak"):  # weak overrides strong where a run takes part in both
        compared = _compared(series, kind)
        found.loc[compared.index, compared.columns] = compared
    return found


def _batch(runs: pd.DataFrame) -> pd.Series[float]:
    """train.global_batch as a number; a damaged config may hold anything."""
    if "train.global_batch" not in runs:
        return pd.Series(float("nan"), index=runs.index)
    return pd.to_numeric(runs["train.global_batch"], errors="coerce").astype("float64")


def _compared(series: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Those that have peers of another world size and equal batch: per rank (weak) or per step (strong)."""
    its = series[series["batch"] > 0].copy()
    unit = "rank" if kind == "weak" else "step"
    its["share"] = its["batch"] / its["ranks"] if kind == "weak" else its["batch"]
    peers = its.groupby(["group", "share"], sort=False)["ranks"]
    its = its[peers.transform("nunique") > 1]
    peers = its.groupby(["group", "share"], sort=False)["ranks"]
    its = its.assign(smallest=peers.transform("min"))
    smallest = its[its["ranks"] == its["smallest"]]
    base = smallest.groupby(["group", "share"], sort=False)["per_rank"].median().rename("base")
    its = its.join(base, on=["group", "share"])
    labels = [
        f"{name}, {share:g}/{unit}" if name else f"{share:g}/{unit}"
        for name, share in zip(its["name"], its["share"], strict=True)
    ]
    return pd.DataFrame({
        "scaling_kind": pd.Series(kind, index=its.index, dtype="string"),
        "scaling_series": pd.Series(labels, index=its.index, dtype="string"),
        "scaling_base_world_size": its["smallest"].astype("Int64"),
        "scaling_efficiency_percent": 100 * its["per_rank"] / its["base"],
    })  # fmt: skip


def _names(firsts: pd.DataFrame) -> list[str]:
    """For one run of each group, the keys in which groups of its recipe differ: at most three; none for an only one."""
    work = list(firsts.columns[1:])
    varied: set[object] = set()
    for recipe, its in firsts.groupby("recipe", sort=False):
        varied.update((recipe, key) for key in work if its[key].nunique(dropna=False) > 1)
    names: list[str] = []
    taken: dict[tuple[str, str], int] = {}
    for row in firsts.to_dict("records"):
        recipe = row["recipe"]
        differing = [key for key in work if (recipe, key) in varied]
        name = ", ".join(_short(key, row[key], differing) for key in differing[:3])
        taken[recipe, name] = taken.get((recipe, name), 0) + 1
        names.append(name if taken[recipe, name] == 1 else f"{name} #{taken[recipe, name]}")
    return names


def _short(key: object, value: object, beside: Sequence[object]) -> str:
    """`width=32` for model.width, unless another key beside it ends alike; strategies and devices need no key."""
    shown = "none" if pd.isna(value) else str(value)  # type: ignore[call-overload]
    if key in ("strategy", "device"):
        return shown
    leaf = str(key).rpartition(".")[2]
    alone = sum(str(other).rpartition(".")[2] == leaf for other in beside) == 1
    return f"{leaf if alone else key}={shown}"
