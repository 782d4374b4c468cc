"""What the tables need of some runs, as columns: compact, quick to store, to join and to put in order.

A run's rows in `attempts`, `evaluations` and `steps` stand together and in the order of `runs`, which counts them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainpkg.metric_lines import TRAIN_FIELDS
from trainpkg.tables import columns
from trainpkg.tables.files.collect import RunFiles
from trainpkg.tables.rows.attempts import attempt_rows
from trainpkg.tables.rows.frames import evaluation_rows
from trainpkg.tables.rows.runs import is_settled, run_row

TYPES = {"string": pa.string(), "Int64": pa.int64(), "float64": pa.float64(), "boolean": pa.bool_()}
# A config's values are kept as JSON: only all runs together say which type a column has.
JSON_TEXT = pa.dictionary(pa.int32(), pa.string())
CONFIG = "config:"
PARTS = ("attempts", "evaluations", "steps")
OWN = {
    "signature": "string", "holds": "string", "words": "string", "fingerprint": "string",
    **{f"count:{part}": "Int64" for part in PARTS},
}  # fmt: skip
STEPS = pa.schema([(name, pa.float64()) for name in TRAIN_FIELDS])


@dataclass(frozen=True)
class Batch:
    """`runs` has the columns of OWN and RUN, `eval_*` and `config:*`; without a signature a run is read again."""

    runs: pa.Table
    attempts: pa.Table
    evaluations: pa.Table
    steps: pa.Table

    def counts(self, part: str) -> NDArray[np.int64]:
        """Rows of each run in a part."""
        counts: NDArray[np.int64] = self.runs[f"count:{part}"].to_numpy()
        return counts

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """These runs in this order."""
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        stretches = [(int(its[0]), int(its[-1]) + 1) for its in np.split(rows, cuts) if len(its)]
        parts = {part: self._slices(part, stretches) for part in PARTS}
        return Batch(self.runs.unify_dictionaries().take(pa.array(rows)), **parts)

    def _slices(self, part: str, stretches: list[tuple[int, int]]) -> pa.Table:
        table = getattr(self, part)
        ends = np.concatenate([[0], np.cumsum(self.counts(part))])
        pieces = [table.slice(ends[first], ends[last] - ends[first]) for first, last in stretches]
        return pa.concat_tables(pieces) if pieces else table.slice(0, 0)


def batch_of(runs: Sequence[RunFiles], signatures: Sequence[str], now_s: float) -> Batch:
    """The columns of runs that were read; `now_s` (unix seconds) tells a fresh lock from a stale one."""
    rows: list[dict[str, Any]] = []
    attempts: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    for one, signature in zip(runs, signatures, strict=True):
        its_attempts, its_evaluations = attempt_rows(one), evaluation_rows(one)
        rows.append({
            **run_row(one, its_attempts, now_s), "signature": signature if is_settled(one) else None,
            "holds": one.holds, "count:attempts": len(its_attempts), "count:evaluations": len(its_evaluations),
            "count:steps": len(one.metrics.train),
        })  # fmt: skip
        attempts += its_attempts
        evaluations += its_evaluations
    table = _table(rows, OWN | columns.RUN, _metrics(rows))
    for key, texts in _configs(runs).items():
        table = table.append_column(f"{CONFIG}{key}", texts)
    blocks = [one.metrics.train for one in runs]
    steps = np.concatenate(blocks) if blocks else np.empty((0, len(TRAIN_FIELDS)))
    return Batch(
        runs=table,
        attempts=_table(attempts, columns.ATTEMPT, {}),
        evaluations=_table(evaluations, columns.EVALUATION, _metrics(evaluations)),
        steps=pa.table([pa.array(column.copy(), from_pandas=True) for column in steps.T], schema=STEPS),
    )


def joined(batches: Sequence[Batch]) -> Batch:
    """One after the other; a column that some lack is empty there."""
    parts = {part: _concat(getattr(batch, part) for batch in batches) for part in ("runs", *PARTS)}
    return Batch(**parts)


def _concat(tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="default")


def _table(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str], more: Mapping[str, str]) -> pa.Table:
    arrays = {
        name: pa.array([row.get(name) for row in rows], TYPES[kind], from_pandas=True)
        for name, kind in {**types, **more}.items()
    }
    return pa.table(arrays)


def _metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return dict.fromkeys(columns.metric_columns({name for row in rows for name in row}), "float64")


def _configs(runs: Sequence[RunFiles]) -> dict[str, pa.Array]:
    """Key -> its values as JSON, null where a run lacks the key. Keys named like a column of ours give way to it."""
    keys = dict.fromkeys(key for one in runs for key in one.config)
    return {key: _texts([one.config.get(key, ...) for one in runs]) for key in keys if not is_ours(key)}


def is_ours(key: str) -> bool:
    """Whether a table of runs has a column of this name that is no key of the config."""
    return key in columns.RUN or key in OWN or key.startswith("eval_")


def _texts(values: Sequence[Any]) -> pa.Array:
    places: dict[Any, int] = {}
    texts: list[str] = []
    codes: dict[int, int | None] = {}
    # Runs share the sections of their configs, so that most values are one object.
    for identity, value in {id(value): value for value in values}.items():
        if value is ...:
            codes[identity] = None
            continue
        kind = (type(value), value)  # 1, 1.0 and True are equal
        if kind not in places:
            places[kind] = len(texts)
            texts.append(json.dumps(value, default=str))
        codes[identity] = places[kind]
    indices = pa.array([codes[id(value)] for value in values], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))
