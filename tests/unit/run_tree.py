"""Builds result directories as the launcher and the trainer leave them, for the tests of tables and plots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from trainpkg.tables.files.collect import Expected

NOW_S = 1_800_000_000.0
"""The clock of all tests: 2027-01-15T08:00:00Z."""


def config(**changes: Any) -> dict[str, Any]:
    """A flat config such as `Run.flat()` gives, short; dots of keys are written as two underscores."""
    keys: dict[str, Any] = {
        "task": "images", "seed": 0, "strategy": None, "model.name": "conv", "model.width": 32, "data.name": "digits",
        "optim.name": "adamw", "optim.lr": 0.001, "train.max_steps": 40, "train.global_batch": 64,
        "launch.nodes": 1, "launch.gpus_per_node": 2, "launch.device": "cpu", "launch.devices": None, "launch.env": {},
        "slurm.gpu_type": None, "logging.every_steps": 10,
    }  # fmt: skip
    return keys | {name.replace("__", "."): value for name, value in changes.items()}


def expected(run: str, recipe: str = "digits", fingerprint: str | None = "f1", **changes: Any) -> Expected:
    return Expected(run, recipe, fingerprint, lambda: config(**changes))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, leaf = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[leaf] = value
    return tree


def record(step: int, loss: Any, attempt: int = 1, generation: int = 0, **more: Any) -> dict[str, Any]:
    """A train record; by default 64 samples and half a second per step."""
    return {
        "kind": "train", "attempt": attempt, "generation": generation, "step": step, "samples": 64 * step,
        "tokens": None, "time_s": 0.5 * step, "loss": loss, "lr": 0.001, "grad_norm": 1.5, "samples_per_second": 128.0,
        "tokens_per_second": None, "step_time_s": 0.5, "data_time_s": 0.01, "memory_mb": 200.0, "epoch": 0.1 * step,
        **more,
    }  # fmt: skip


def evaluation(step: int, attempt: int = 1, generation: int = 0, **metrics: Any) -> dict[str, Any]:
    return {
        "kind": "eval", "attempt": attempt, "generation": generation, "step": step, "samples": 64 * step,
        "time_s": 0.5 * step, "metrics": metrics,
    }  # fmt: skip


def lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in records)


def row(table: pd.DataFrame, run: str) -> dict[str, Any]:
    """A run's row with None for gaps."""
    found = table[table["run"] == run]
    assert len(found) == 1
    return {key: None if pd.isna(value) else value for key, value in found.iloc[0].items()}


def has(row: dict[str, Any], **wanted: Any) -> None:
    assert {key: row[key] for key in wanted} == wanted


class Tree:
    """A results directory; each method writes one file of a run and returns the tree."""

    def __init__(self, results: Path) -> None:
        self.results = results
        (results / "runs").mkdir(parents=True, exist_ok=True)

    def raw(self, run: str, name: str, content: bytes) -> Tree:
        path = self.results / "runs" / run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return self

    def json(self, run: str, name: str, value: Any) -> Tree:
        return self.raw(run, name, json.dumps(value).encode())

    def config(self, one: Expected, fingerprint: str | None = None, **changes: Any) -> Tree:
        document = {"run": one.run, "recipe": one.recipe, "fingerprint": fingerprint or one.fingerprint}
        flat = {**one.config(), **{name.replace("__", "."): value for name, value in changes.items()}}
        return self.raw(one.run, "config.yaml", yaml.safe_dump(document | nested(flat)).encode())

    def metrics(self, run: str, records: Iterable[Mapping[str, Any]], tail: bytes = b"") -> Tree:
        return self.raw(run, "metrics.jsonl", lines(records) + tail)

    def attempt(
        self,
        run: str,
        number: int,
        verdict: str | None,
        start_s: float,
        hours: float | None,
        ranks: int = 2,
        **facts: Any,
    ) -> Tree:
        """attempt.json (without an end if `hours` is None) and the plan of generation 0 (none if `ranks` is 0)."""
        document = {"stage": "train", "slurm_job_id": f"7{number}", "host": "n1", "start": start_s, **facts}
        if hours is not None:
            document |= {"end": start_s + 3600 * hours, "verdict": verdict}
        if ranks:
            nodes = [{"host": "n1", "index": 0, "rank_offset": 0, "num_ranks": ranks}]
            self.json(run, f"launch/{number}/0/plan.json", {"world_size": ranks, "nodes": nodes})
        return self.json(run, f"launch/{number}/attempt.json", document)

    def finished(self, one: Expected, records: Iterable[Mapping[str, Any]], ranks: int = 2, **facts: Any) -> Tree:
        """A run that one attempt of an hour finished."""
        name = one.run
        train = {
            "run": name, "recipe": one.recipe, "fingerprint": one.fingerprint, "status": "finished",
            "world_size": ranks, "num_nodes": 1, "device": "cpu",
            "strategy": one.config()["strategy"] or ("ddp" if ranks > 1 else "single"),
            "steps": 40, "train_time_s": 20.0, "num_parameters": 1000, "final": {"train_loss": 0.25, "loss": 0.4},
            "best": {"metric": "accuracy", "mode": "max", "value": 0.9, "step": 40}, "memory_mb": 210.0, **facts,
        }  # fmt: skip
        self.config(one).metrics(name, records).attempt(name, 1, "finished", NOW_S - 7200, 1.0, ranks, status=0)
        return self.json(name, "train.json", train)
