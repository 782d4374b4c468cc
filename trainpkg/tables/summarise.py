"""The subcommand `summarise`: tables and plots from the files of all runs, finished or not.

Same files, same bytes: nothing here depends on the order in which a file system lists names, and on the clock only
whether an unfinished run counts as running.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainpkg.tables import cache, report
from trainpkg.tables.assemble import Tables, assemble
from trainpkg.tables.drawing import Drawing
from trainpkg.tables.expected import expected_runs
from trainpkg.tables.files.collect import Expected
from trainpkg.tables.pages.evidence import smoke_table
from trainpkg.tables.pages.shown import pages
from trainpkg.tables.reading import gather
from trainpkg.tables.render import publish, render
from trainpkg.tables.rows import accounting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The config that names the runs, and where tables and plots go."""
    from trainpkg.sheet import add_config_arguments

    add_config_arguments(parser)
    parser.add_argument("--results", type=Path, help="where the results are, if not in the config's results_dir")
    parser.add_argument("--out", type=Path, help="tables/ and plots/ go below it; default: where the results are")


def main(args: argparse.Namespace) -> int:
    """Read all runs, write all tables and plots, say in one line what there is."""
    gc.disable()  # what thousands of runs have said makes no cycles, and a look through it for some takes a second
    try:
        return _summarise(args)
    finally:
        gc.enable()


def _summarise(args: argparse.Namespace) -> int:
    from trainpkg import sheet

    config = sheet.config_of(args)
    loaded = sheet.load(config, lazily=True)
    results_dir = loaded.results_dir if args.results is None else Path(args.results)  # a module's prefix moves them
    out = results_dir if args.out is None else Path(args.out)
    with Drawing() as drawing:
        expected = expected_runs(loaded, config, cache.load_runs(out / "tables"))

        def show(tables: Tables) -> None:
            drawing.begin(tables)
            publish(out / "tables", pages(tables, smoke_table(results_dir)).items())

        now_s, ask = time.time(), accounting.ask_sacct
        tables = write_tables(results_dir, expected, now_s, out / "tables", ask=ask, meanwhile=show)
        publish(out / "plots", drawing.files().items())
    counts = Counter(tables.runs["status"])
    print(f"{report.counted(counts)}: {out / 'tables' / 'summary.md'}")
    return 0


def write_tables(
    results_dir: Path,
    expected: Iterable[Expected],
    now_s: float,
    tables_dir: Path,
    *,
    ask: accounting.Ask = lambda job_ids: "",
    meanwhile: Callable[[Tables], None] = lambda _: None,
) -> Tables:
    """Write all tables; read only what has changed since they were written last.

    `ask` says what Slurm's accounting knows of jobs. `meanwhile` gets the tables while they are written: Arrow writes
    without Python's lock, on a second processor.
    """
    batch = accounting.joined(gather(results_dir, expected, now_s, cache.load(tables_dir)), ask)
    tables, runs = assemble(batch), batch.runs
    del batch  # the records of thousands of runs would be in memory twice

    def write() -> None:
        publish(tables_dir, render(tables))
        cache.save(tables_dir, runs)

    with ThreadPoolExecutor(1) as beside:
        written = beside.submit(write)
        meanwhile(tables)
        written.result()
    return tables


def summarise(results_dir: Path, expected: Sequence[Expected], now_s: float) -> Tables:
    """All tables from the files below `results_dir`; `now_s` in unix seconds tells a fresh lock from a stale one."""
    return assemble(gather(results_dir, expected, now_s))
