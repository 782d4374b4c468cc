"""Draws the plots in two processes of their own, beside the one that writes the tables.

They import matplotlib while results are still being read, and draw while tables are written.
"""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow as pa

from trainpkg.tables.assemble import Tables

# What plots show of a record; the rest need not go from one process to the other.
STEP_COLUMNS = (
    "run", "step", "samples", "tokens", "time_s", "loss", "samples_per_second", "tokens_per_second",
)  # fmt: skip
SHARES = 2


class Drawing:
    """`begin` once there are tables, then `files`."""

    def __init__(self) -> None:
        # Forked, they would inherit Arrow's locks without the threads that hold them.
        self._processes = ProcessPoolExecutor(SHARES, mp_context=multiprocessing.get_context("spawn"))
        self._folder = tempfile.TemporaryDirectory(prefix="trainpkg-")
        self._shares: list[Future[Mapping[str, bytes]]] = []
        for _ in range(SHARES):
            self._processes.submit(_prepare)

    def __enter__(self) -> Drawing:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def begin(self, tables: Tables) -> None:
        """Returns once the numbers are on their way."""
        # A file that both map: millions of records go through no pipe, and are in memory once.
        path = Path(self._folder.name) / "steps.arrow"
        steps = tables.steps.select(STEP_COLUMNS)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, steps.schema) as writer:
            writer.write_table(steps)
        for share in range(SHARES):
            given = (share, tables.runs, path, tables.evaluations, tables.attempts)
            self._shares.append(self._processes.submit(_draw, *given))

    def files(self) -> Mapping[str, bytes]:
        """File name -> SVG; waits for them."""
        return {name: content for share in self._shares for name, content in share.result().items()}


def _prepare() -> None:
    import trainpkg.tables.plots  # noqa: F401

    gc.freeze()  # nothing of it is garbage: else collections, and the process's end, would walk through it


def _draw(
    share: int, runs: pd.DataFrame, steps: Path, evaluations: pd.DataFrame, attempts: pd.DataFrame
) -> Mapping[str, bytes]:
    from trainpkg.tables.plots import plots

    with pa.memory_map(str(steps)) as file, pa.ipc.open_file(file) as reader:
        return plots(runs, reader.read_all(), evaluations, attempts, share, SHARES)
