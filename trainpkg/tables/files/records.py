"""Read one metrics.jsonl. Damage is counted and described, never fatal; nothing here knows of other files.

A line is a record when it is a JSON object in UTF-8 with `kind` train or eval, a step that is a whole number >= 0, and
numbers (or null) where numbers belong. Everything else is a bad record. A loss that is NaN or infinite is no damage but
a result: such a record is kept and counted apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainpkg.metric_lines import LARGEST_INT, TRAIN_FIELDS

COLUMN = {name: index for index, name in enumerate(TRAIN_FIELDS)}
NUMERIC = frozenset({int, float, type(None)})


@dataclass(frozen=True)
class EvalRecord:
    """An evaluation during training. Metric names and their units are the task's."""

    attempt: int
    generation: int
    step: int
    samples: float
    time_s: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Metrics:
    """The records of one run, one per (kind, step), ordered by step."""

    train: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, len(TRAIN_FIELDS))))
    """Shape (records, len(TRAIN_FIELDS)); NaN where a record says nothing."""
    evals: tuple[EvalRecord, ...] = ()
    num_bad: int = 0
    num_nonfinite: int = 0
    num_overwritten: int = 0
    """Records that a later attempt or generation wrote anew. Those of one writer and step make one record together."""
    notes: tuple[str, ...] = ()

    def column(self, name: str) -> NDArray[np.float64]:
        """One field of the train records, in step order."""
        values: NDArray[np.float64] = self.train[:, COLUMN[name]]
        return values

    def last_generation(self) -> NDArray[np.bool_]:
        """Which train records the newest (attempt, generation) wrote."""
        attempts, generations = self.column("attempt"), self.column("generation")
        last = attempts == attempts.max(initial=-1.0)
        newest: NDArray[np.bool_] = last & (generations == generations[last].max(initial=-1.0))
        return newest


def parse(data: bytes) -> Metrics:
    """The records in the bytes of a metrics.jsonl; the last (attempt, generation) wins per kind and step.

    What one of them says of a step in several lines is one record: of each field the last line that has it.
    """
    if not data:
        return Metrics(notes=("metrics.jsonl is empty",))
    train: dict[int, list[Any]] = {}
    evals: dict[int, EvalRecord] = {}
    nonfinite: set[int] = set()
    bad_lines: list[int] = []
    num_good = num_joined = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record, damaged = read_line(line)
        if damaged:
            bad_lines.append(number)
        if record is None:
            continue
        num_good += 1
        is_eval = record["kind"] == "eval"
        num_joined += keep_eval(evals, record) if is_eval else _keep_train(train, nonfinite, record)
    array = np.array([train[step] for step in sorted(train)], dtype=np.float64).reshape(-1, len(TRAIN_FIELDS))
    return Metrics(
        train=array,
        evals=tuple(evals[step] for step in sorted(evals)),
        num_bad=len(bad_lines),
        num_nonfinite=len(nonfinite),
        num_overwritten=num_good - num_joined - len(train) - len(evals),
        notes=notes_on(bad_lines, len(lines), nonfinite, array),
    )


def read_line(line: bytes) -> tuple[dict[str, Any] | None, bool]:
    """The record in a line, and whether the line is damaged.

    A writer killed inside a line leaves a torn one, and the next attempt appends to it: what follows the tear is whole.
    """
    record = _checked(line)
    if record is not None:
        return record, False
    tear = line.rfind(b'{"kind"')
    return (_checked(line[tear:]) if tear > 0 else None), True


def _checked(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("kind") not in ("train", "eval"):
        return None
    if type(record.get("step")) is not int or record["step"] < 0:
        return None
    # A user's own script may leave the attempt out: then the order of the lines decides.
    if type(record.setdefault("attempt", 0)) is not int or type(record.setdefault("generation", 0)) is not int:
        return None
    values = [record.get(name) for name in TRAIN_FIELDS]
    if not NUMERIC.issuperset(map(type, values)):
        return None
    if any(type(value) is int and abs(value) > LARGEST_INT for value in values):
        return None
    if record["kind"] == "eval" and not _are_numbers(record.get("metrics")):
        return None
    return record


def _are_numbers(metrics: Any) -> bool:
    if not isinstance(metrics, dict) or not NUMERIC.issuperset(map(type, metrics.values())):
        return False
    return all(type(value) is not int or abs(value) <= LARGEST_INT for value in metrics.values())


def _keep_train(kept: dict[int, list[Any]], nonfinite: set[int], record: dict[str, Any]) -> bool:
    """As `keep_eval`, for a training record."""
    step, writer = record["step"], (record["attempt"], record["generation"])
    before = kept.get(step)
    if before is not None and (before[0], before[1]) > writer:
        return False
    said = before if before is not None and (before[0], before[1]) == writer else None
    kept[step] = [record.get(name, said and said[place]) for place, name in enumerate(TRAIN_FIELDS)]
    loss = record.get("loss")
    # A strict JSON writer turns NaN into null; a record without the key says nothing about the loss.
    if "loss" in record and (loss is None or not math.isfinite(loss)):
        nonfinite.add(step)
    elif "loss" in record or said is None:
        nonfinite.discard(step)
    return said is not None


def keep_eval(kept: dict[int, EvalRecord], record: dict[str, Any]) -> bool:
    """Put an evaluation into `kept` by its step, unless a later attempt or generation stands there.

    Returns whether the same one's stood there: then both are one record.
    """
    step, writer = record["step"], (record["attempt"], record["generation"])
    before = kept.get(step)
    if before is not None and (before.attempt, before.generation) > writer:
        return False
    said = before if before is not None and (before.attempt, before.generation) == writer else None
    metrics = {clean(name): number(value) for name, value in record["metrics"].items()}
    if said is not None:
        metrics = {**said.metrics, **metrics}
        record = {"samples": said.samples, "time_s": said.time_s, **record}
    kept[step] = EvalRecord(
        attempt=int(record["attempt"]),
        generation=int(record["generation"]),
        step=step,
        samples=number(record.get("samples")),
        time_s=number(record.get("time_s")),
        metrics=dict(sorted(metrics.items())),
    )
    return said is not None


def clean(text: str) -> str:
    """Text that can be written as UTF-8: JSON escapes and names of files may hold halves of characters."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def number(value: Any) -> float:
    """A JSON value as a number; NaN for null and for whatever is none."""
    if type(value) not in (int, float) or (type(value) is int and abs(value) > LARGEST_INT):
        return math.nan
    return float(value)


def notes_on(bad: list[int], num_lines: int, nonfinite: set[int], train: NDArray[np.float64]) -> tuple[str, ...]:
    """What a reader of the tables should know: bad lines, steps without a finite loss, a clock that went back."""
    notes = []
    if bad:
        # A file that ends with a newline splits into an empty last line: then no line is torn.
        torn = ", the last one torn" if bad[-1] == num_lines else ""
        notes.append(f"metrics.jsonl: {len(bad)} bad, first in line {bad[0]}{torn}")
    if nonfinite:
        notes.append(f"metrics.jsonl: loss not finite in {len(nonfinite)}, first at step {min(nonfinite)}")
    same_writer = np.all(train[1:, :2] == train[:-1, :2], axis=1)
    back = same_writer & (np.diff(train[:, COLUMN["time_s"]]) < 0)
    if back.any():
        notes.append(f"metrics.jsonl: time_s goes back at step {train[1:][back][0, COLUMN['step']]:.0f}")
    return tuple(notes)
