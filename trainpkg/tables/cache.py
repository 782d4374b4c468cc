"""What was read before: `cache.parquet` beside the tables, which are part of it. Safe to delete; holds no code.

It counts only together with the tables that it was written with: it knows their sizes and times, and which version of
the reading code made them. Else everything is read anew.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import trainpkg
from trainpkg.tables import columns
from trainpkg.tables.batch import PARTS, STEPS, TYPES, Batch

NAME = "cache.parquet"
KEY = b"trainpkg"


@cache
def _version() -> str:
    """Over the sources that read results and configs: another version may read the same files otherwise."""
    digest = hashlib.sha256(pa.__version__.encode())
    package = Path(trainpkg.__file__).parent
    for pattern in ("tables/*.py", "config/*.py", "*.py"):
        for path in sorted(package.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _state(tables_dir: Path) -> dict[str, object]:
    stats = {part: (tables_dir / f"{part}.parquet").stat() for part in PARTS}
    return {"version": _version(), **{part: [its.st_size, its.st_mtime_ns] for part, its in stats.items()}}


def load(tables_dir: Path) -> Batch | None:
    """What the tables in this directory were made from, None where they cannot be relied on."""
    try:
        with pq.ParquetFile(tables_dir / NAME) as file:
            if json.loads(file.schema_arrow.metadata[KEY]) != _state(tables_dir):
                return None
            runs = file.read()
        parts = {part: _part(tables_dir, part) for part in PARTS}
        batch = Batch(runs.replace_schema_metadata(None), **parts)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    whole = all(batch.counts(part).sum() == parts[part].num_rows for part in PARTS)
    return batch if whole else None


def _part(tables_dir: Path, part: str) -> pa.Table:
    if part == "steps":
        return pq.read_table(tables_dir / "steps.parquet", columns=STEPS.names).cast(STEPS)
    table = pq.read_table(tables_dir / f"{part}.parquet").drop_columns(["run", "recipe"])
    types: dict[str, str] = {"attempts": columns.ATTEMPT, "evaluations": columns.EVALUATION}[part].copy()
    types |= dict.fromkeys(columns.metric_columns(table.column_names), "float64")
    return table.select(list(types)).cast(pa.schema([(name, TYPES[kind]) for name, kind in types.items()]))


def content(tables_dir: Path, batch: Batch) -> bytes:
    """The content of `cache.parquet` for the tables as they lie there; `batch` is what they were made from."""
    stamp = {KEY: json.dumps(_state(tables_dir)).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(batch.runs.unify_dictionaries().replace_schema_metadata(stamp), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
