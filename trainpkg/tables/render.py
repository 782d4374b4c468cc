"""Tables as files: CSV, Parquet and the page for reading; and how files are put in their places."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from trainpkg.tables import report
from trainpkg.tables.assemble import Tables
from trainpkg.tables.columns import short_columns

# What spreadsheets open, less the line of names. More training records than that are in steps.parquet alone.
MAX_CSV_ROWS = 1_048_575
ROWS_PER_GROUP = 500_000


def render(tables: Tables) -> Iterator[tuple[str, bytes]]:
    """(file name, content) one by one, since records of thousands of runs are large.

    runs.csv has the columns for reading, runs.parquet every key of the config as well.
    """
    short = tables.runs[short_columns(tables.runs)]
    yield "runs.csv", _csv(short)
    yield "runs.parquet", _parquet(tables.runs)
    for name in ("seeds", "steps", "evaluations", "attempts"):
        table = getattr(tables, name)
        yield f"{name}.parquet", _parquet(table)
        yield f"{name}.csv", _csv(table.iloc[: 0 if len(table) > MAX_CSV_ROWS else None])
    yield "summary.md", report.markdown(short, len(tables.steps) > MAX_CSV_ROWS).encode()


def _csv(table: pd.DataFrame) -> bytes:
    """Text is quoted where it has to be; a gap is empty."""
    found = pa.Table.from_pandas(table, preserve_index=False)
    plain = [pa.string() if pa.types.is_dictionary(field.type) else field.type for field in found.schema]
    fields = [pa.field(name, kind) for name, kind in zip(found.column_names, plain, strict=True)]
    sink = pa.BufferOutputStream()
    options = pyarrow.csv.WriteOptions(quoting_style="needed")
    pyarrow.csv.write_csv(found.cast(pa.schema(fields)), sink, options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _parquet(table: pd.DataFrame) -> bytes:
    """Written in pieces, so that a copy of a large table never is in memory as a whole."""
    schema = pa.Schema.from_pandas(table, preserve_index=False)
    texts = [field.name for field in schema if not pa.types.is_floating(field.type)]
    sink = pa.BufferOutputStream()
    # Real numbers hardly repeat.
    with pq.ParquetWriter(sink, schema, use_dictionary=texts, compression="zstd", compression_level=1) as writer:
        for start in range(0, max(len(table), 1), ROWS_PER_GROUP):
            rows = table.iloc[start : start + ROWS_PER_GROUP]
            writer.write_table(pa.Table.from_pandas(rows, schema, preserve_index=False))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def publish(directory: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write each file whole or not at all: a reader beside us, or a full disk, never leaves half a table."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files:
        beside = directory / f".{name}.{os.getpid()}"
        try:
            beside.write_bytes(content)
            beside.replace(directory / name)
        finally:
            beside.unlink(missing_ok=True)
