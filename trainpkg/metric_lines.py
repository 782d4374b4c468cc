"""Lines of metrics.jsonl, from what a program of the user's own says of a step. Of the standard library alone.

The trainer's own records are made in `runtime.metrics`; tables read both, and know the fields of a training record.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRAIN_FIELDS = (
    "attempt", "generation", "step", "samples", "tokens", "time_s", "loss", "lr", "grad_norm", "samples_per_second",
    "tokens_per_second", "step_time_s", "data_time_s", "memory_mb", "epoch", "skipped_steps", "loss_scale",
)  # fmt: skip
# Records become float64, which holds whole numbers exactly up to here.
LARGEST_INT = 2**53
# what other trainers call them; where a line has both, theirs says more: a `step` may be that of an epoch
OTHER_NAMES = {"global_step": "step", "learning_rate": "lr", "num_input_tokens_seen": "tokens"}
HOW_FAR = ("step", "samples", "tokens", "time_s", "epoch")  # true of any record: by themselves they make none
OF_THE_WRITER = ("attempt", "generation")
EVALUATION = "eval_"


def strict(values: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], list[str]]:
    """(values with non-finite numbers as None, notes such as `loss is nan`): JSON has no such numbers."""
    clean: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in values.items():
        if isinstance(value, dict):
            clean[name], inner = strict(value, f"{prefix}{name}.")
            notes += inner
        elif isinstance(value, float) and not math.isfinite(value):
            clean[name] = None
            notes.append(f"{prefix}{name} is {value}")
        else:
            clean[name] = value
    return clean, notes


@dataclass
class Lines:
    """The lines of one generation of ranks. `began_unix_s`: when its attempt began; `time_s` counts from there."""

    attempt: int
    generation: int
    began_unix_s: float
    _last: dict[str, float] = field(default_factory=dict)  # how far the record before was

    def of(self, said: Mapping[str, Any], now_unix_s: float, at_once: bool = True) -> list[str]:
        """The lines for what was said of one step: none without a whole `step`, or without a number besides.

        `at_once`: it was said at `now_unix_s`, else some time before, and then speeds do not follow from it.
        A training record where a field of one is said (`loss`, `lr`, ...), and an evaluation for all other numbers,
        whose names lose an `eval_` in front where that makes no two alike. A `time_s` that is said counts. Text, lists
        and the like say nothing to tables and are left out. A record that is one of metrics.jsonl already (`kind`)
        keeps its form.
        """
        values = {name: value for name, value in said.items() if name not in OTHER_NAMES}
        values |= {ours: said[theirs] for theirs, ours in OTHER_NAMES.items() if theirs in said}
        step = _number(values.get("step"))
        if step is None or not 0 <= step <= LARGEST_INT or step != int(step):
            return []
        nested = values.get("metrics") if values.get("kind") == "eval" else None
        found = {name: number for name, value in values.items() if (number := _number(value)) is not None}
        found["step"] = int(step)
        found.setdefault("time_s", round(now_unix_s - self.began_unix_s, 3))
        train = {name: found[name] for name in TRAIN_FIELDS if name in found and name not in OF_THE_WRITER}
        others = (
            nested if isinstance(nested, dict) else {name: found[name] for name in found if name not in TRAIN_FIELDS}
        )
        numbers = {name: number for name, value in others.items() if (number := _number(value)) is not None}
        short = {name: name.removeprefix(EVALUATION) for name in numbers}
        metrics = {name if short[name] in numbers else short[name]: number for name, number in numbers.items()}
        how_far = {name: train[name] for name in HOW_FAR if name in train}
        lines = []
        if train.keys() - how_far and nested is None:
            lines.append(self._line("train", self._with_speed(train) if at_once or "time_s" in values else train))
        if metrics:
            lines.append(self._line("eval", {**how_far, "metrics": metrics}))
        return lines

    def _line(self, kind: str, values: Mapping[str, Any]) -> str:
        clean, odd = strict(values)
        record = {"kind": kind, "attempt": self.attempt, "generation": self.generation, **clean}
        if odd:
            record["note"] = ", ".join(odd)
        return json.dumps(record, allow_nan=False) + "\n"

    def _with_speed(self, train: dict[str, Any]) -> dict[str, Any]:
        """With the speed since the record before, where it follows from what both say and nobody said it."""
        before, now = self._last, {name: train[name] for name in HOW_FAR if name in train}
        self._last = now | before if before.get("step") == train["step"] else now
        seconds = train["time_s"] - before.get("time_s", train["time_s"])
        steps = train["step"] - before.get("step", train["step"])
        if not (seconds > 0 and steps > 0):
            return train
        found = {"step_time_s": round(seconds / steps, 6)}
        for name in ("samples", "tokens"):
            if name in train and name in before:
                found[f"{name}_per_second"] = round((train[name] - before[name]) / seconds, 3)
        return found | train


def append(path: Path, lines: list[str]) -> None:
    """Add whole lines to a metrics.jsonl; one that a kill has torn stays alone on its line."""
    if not lines:
        return
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                lines = ["\n", *lines]
        file.write("".join(lines).encode())  # in one piece, at the end of the file whatever was read


def _number(value: Any) -> int | float | None:
    """A number, also of numpy and torch; None for all else, and for a whole one that tables could not hold."""
    if not isinstance(value, int | float):
        try:
            value = value.item()  # of one element; ValueError or RuntimeError where there are more
        except (AttributeError, TypeError, ValueError, RuntimeError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if isinstance(value, int) and abs(value) > LARGEST_INT else value
