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
    yield "runs.csv", _csv(_arrow(short))
    yield "runs.parquet", _parquet(_arrow(tables.runs))
    for name in ("seeds", "steps", "evaluations", "attempts"):
        table = _arrow(getattr(tables, name))
        yield f"{name}.parquet", _parquet(table)
        yield f"{name}.csv", _csv(table.slice(0, 0) if len(table) > MAX_CSV_ROWS else table)
    yield "summary.md", report.markdown(short, len(tables.steps) > MAX_CSV_ROWS).encode()


def _arrow(table: pd.DataFrame | pa.Table) -> pa.Table:
    """With what pandas is to make of it again: whole numbers with gaps, say, stay whole."""
    if isinstance(table, pd.DataFrame):
        return pa.Table.from_pandas(table, preserve_index=False)
    kinds = {pa.int64(): pd.Int64Dtype()}
    pattern = pa.Schema.from_pandas(table.slice(0, 0).to_pandas(types_mapper=kinds.get), preserve_index=False)
    return table.replace_schema_metadata(pattern.metadata)


def _csv(table: pa.Table) -> bytes:
    """Text is quoted where it has to be; a gap is empty."""
    plain = [pa.string() if pa.types.is_dictionary(field.type) else field.type for field in table.schema]
    fields = [pa.field(name, kind) for name, kind in zip(table.column_names, plain, strict=True)]
    sink = pa.BufferOutputStream()
    options = pyarrow.csv.WriteOptions(quoting_style="needed")
    pyarrow.csv.write_csv(table.cast(pa.schema(fields)), sink, options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _parquet(table: pa.Table) -> bytes:
    """Written in pieces, so that a copy of a large table never is in memory as a whole."""
    texts = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    sink = pa.BufferOutputStream()
    # Real numbers hardly repeat.
    with pq.ParquetWriter(sink, table.schema, use_dictionary=texts, compression="zstd", compression_level=1) as writer:
        for start in range(0, max(len(table), 1), ROWS_PER_GROUP):
            # In one chunk: where columns are cut, which depends on how they were read, the file's pages would end.
            writer.write_table(table.slice(start, ROWS_PER_GROUP).combine_chunks())
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
