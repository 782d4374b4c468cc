"""What must be true of a run that was killed again and again, judged from its files and those of a run left alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tests.cluster.submitted import Submitted

# what tells when, where and how fast, and not what was computed
CIRCUMSTANCES = {
    "run", "recipe", "attempt", "generation", "time_s", "samples_per_second", "tokens_per_second", "step_time_s",
    "data_time_s", "memory_mb", "checkpoint",
}  # fmt: skip
TIMES = {"time_s", "train_time_s"}
OWN = {"state.json", "manifest.json", ".metadata"}  # these tell of times, or carry an id of their own


@dataclass(frozen=True)
class Lived:
    """One life, as its rank 0 told it. `first`: the step that it went on from, None if it came to no training."""

    name: str
    first: int | None
    last: int  # the furthest step that it began
    saved: int  # the newest checkpoint that it said it has published; -1: none

    @classmethod
    def read(cls, name: str, log: str) -> Lived:
        began = re.search(r"^(?:goes on from step-(\d+)|starts at step 0)$", log, re.MULTILINE)
        steps = re.findall(r"^chaos: step (\d+)$", log, re.MULTILINE)
        saved = re.findall(r"^chaos: latest step-(\d+)$", log, re.MULTILINE)
        return cls(
            name,
            int(began[1] or 0) if began else None,
            int(steps[-1]) if steps else -1,
            int(saved[-1]) if saved else -1,
        )


def judge(run: Submitted, alone: Submitted, every_steps: int) -> tuple[list[str], int]:
    """What is wrong, in sentences, and how many steps were done twice."""
    lives = [Lived.read(f"life {attempt}.{generation}", run.log((attempt, generation)))
             for attempt, generation in run.lives()]  # fmt: skip
    wrong, twice = wrong_starts(lives, every_steps)
    wrong += wrong_files(run.folder, alone.folder)
    return wrong + wrong_records(run.folder), twice


def wrong_starts(lives: list[Lived], every_steps: int) -> tuple[list[str], int]:
    """Lives that did not begin at the newest checkpoint before them; the steps that were begun more than once.

    A life may have published one more checkpoint than it had the time to tell of.
    """
    wrong, twice, saved, last = [], 0, 0, 0
    for life in lives:
        if life.first is None:
            continue
        if not saved <= life.first <= last:
            wrong.append(f"{life.name} began at step {life.first}; before, {saved} was saved and {last} begun")
        again = max(0, min(last, life.last) - life.first)
        if again > every_steps:
            wrong.append(f"{life.name} did {again} steps again, with a checkpoint every {every_steps} steps")
        twice += again
        saved, last = max(saved, life.first, life.saved), max(last, life.last)
    return wrong, twice


def wrong_files(folder: Path, alone: Path) -> list[str]:
    """Differences between the weights, and all else that the last checkpoint holds."""
    wrong = []
    for name in ("model", "ema"):
        if _weights(folder, name) != _weights(alone, name):
            wrong.append(f"the weights in {name}.safetensors differ from those of the run that was left alone")
    mine, other = _checkpoint(folder), _checkpoint(alone)
    wrong += [
        f"the last checkpoint differs in {name}" for name in sorted(mine | other) if mine.get(name) != other.get(name)
    ]
    return wrong


def _weights(folder: Path, name: str) -> bytes:
    """The tensors alone: the header names the run."""
    data = (folder / f"model/{name}.safetensors").read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


def _checkpoint(folder: Path) -> dict[str, Any]:
    """Name -> content of the files of the newest one."""
    root = folder / "checkpoints" / (folder / "checkpoints/latest").read_text().strip()
    state = json.loads((root / "state.json").read_text())
    files = {path.name: path.read_bytes() for path in root.iterdir() if path.name not in OWN}
    return {"its step": root.name, "state.json": {name: state[name] for name in state.keys() - TIMES}, **files}


def wrong_records(folder: Path) -> list[str]:
    """Records that one life wrote twice."""
    seen, wrong = set(), []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # torn by a kill
        key = tuple(record[name] for name in ("kind", "attempt", "generation", "step"))
        if key in seen:
            wrong.append(f"metrics.jsonl has {key} twice")
        seen.add(key)
    return wrong


def wrong_tables(tables: Path, run: str, alone: str) -> list[str]:
    """Differences between the rows of the two runs in the tables that `summarise` made."""
    found = []
    frames = {
        "steps": pd.read_parquet(tables / "steps.parquet"),
        "evaluations": pd.read_csv(tables / "evaluations.csv"),
    }
    for name, frame in frames.items():
        mine, other = (frame[frame["run"] == one] for one in (run, alone))
        if mine["step"].duplicated().any() or mine.empty:
            found.append(f"the table {name} has steps of {run} twice, or none")
        kept = [column for column in frame.columns if column not in CIRCUMSTANCES]
        if not mine[kept].reset_index(drop=True).equals(other[kept].reset_index(drop=True)):
            found.append(f"the table {name} of {run} differs from that of {alone}")
    return found
