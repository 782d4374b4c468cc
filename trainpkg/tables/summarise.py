"""The subcommand `summarise`: tables and plots from the files of all runs, finished or not.

Same files, same bytes: nothing here depends on the order in which a file system lists names, and on the clock only
whether an unfinished run counts as running.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from trainpkg.tables import report
from trainpkg.tables.attempts import attempts_table
from trainpkg.tables.collect import Expected, collect
from trainpkg.tables.frames import evaluations_table, steps_table
from trainpkg.tables.plots import plots
from trainpkg.tables.runs import runs_table, short_columns
from trainpkg.tables.seeds import seeds_table


@dataclass(frozen=True)
class Tables:
    """All tables of a results directory; rows in sheet order, then by name."""

    runs: pd.DataFrame
    seeds: pd.DataFrame
    steps: pd.DataFrame
    evaluations: pd.DataFrame
    attempts: pd.DataFrame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The config that names the runs, and where tables and plots go."""
    from trainpkg.sheet import add_config_arguments

    add_config_arguments(parser)
    parser.add_argument("--out", type=Path, help="tables/ and plots/ go below it; default: the results directory")


def main(args: argparse.Namespace) -> int:
    """Read all runs, write all tables and plots, say in one line what there is."""
    from trainpkg import sheet

    loaded = sheet.load(sheet.config_of(args))
    expected = [Expected(run.run, run.recipe, run.fingerprint(), run.flat()) for run in loaded.runs.values()]
    tables = summarise(loaded.results_dir, expected, time.time())
    out = loaded.results_dir if args.out is None else Path(args.out)
    publish(out / "tables", render(tables))
    publish(out / "plots", plots(tables.runs, tables.steps, tables.evaluations, tables.attempts))
    counts = Counter(tables.runs["status"])
    print(f"{report.counted(counts)}: {out / 'tables' / 'summary.md'}")
    return 0


def summarise(results_dir: Path, expected: Sequence[Expected], now_s: float) -> Tables:
    """All tables from the files below `results_dir`; `now_s` in unix seconds tells a fresh lock from a stale one."""
    found = collect(results_dir, expected)
    runs = runs_table(found, now_s)
    return Tables(
        runs=runs,
        seeds=seeds_table(runs),
        steps=steps_table(found),
        evaluations=evaluations_table(found),
        attempts=attempts_table(found),
    )


def render(tables: Tables) -> dict[str, bytes]:
    """File name -> content: each table as CSV and Parquet, and the page for reading.

    runs.csv has the columns for reading, runs.parquet every key of the config as well.
    """
    short = tables.runs[short_columns(tables.runs)]
    files = {"runs.csv": _csv(short), "runs.parquet": _parquet(tables.runs)}
    for name in ("seeds", "steps", "evaluations", "attempts"):
        table = getattr(tables, name)
        files |= {f"{name}.csv": _csv(table), f"{name}.parquet": _parquet(table)}
    return files | {"summary.md": report.markdown(short).encode()}


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\n").encode()


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, engine="pyarrow", index=False)
    return buffer.getvalue()


def publish(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write each file whole or not at all: a reader beside us, or a full disk, never leaves half a table."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        beside = directory / f".{name}.{os.getpid()}"
        try:
            beside.write_bytes(content)
            beside.replace(directory / name)
        finally:
            beside.unlink(missing_ok=True)
