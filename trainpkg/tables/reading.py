"""Bring the columns of all runs together: those that have not changed from the cache, all others from their files.

Many files are read by several processes: parsing takes the processors, and on a network file system opening takes time.
They begin while the sheet's rows are still being checked and the directories listed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainpkg.tables.files.collect import Expected, absent, read_runs
from trainpkg.tables.files.listing import Listing, directories, is_unchanged, look
from trainpkg.tables.rows.batch import Batch, batch_of, joined

Job = tuple[Expected, Listing]
# Runs that a process reads at a time.
CHUNK = 250
# From so many runs on, further processes are worth their start.
MANY = 1000
MAX_PROCESSES = 8
# A file that changes again within the resolution of its time looks as if it had not changed.
YOUNG_S = 3.0


def gather(results_dir: Path, expected: Iterable[Expected], now_s: float, cached: Batch | None = None) -> Batch:
    """All runs in sheet order, then directories that the sheet does not name, by name."""
    runs_dir = f"{results_dir}/runs"
    known = _Known(cached)
    targets: list[Expected] = []
    rows: list[tuple[int, int] | None] = []
    nowhere: list[tuple[Expected, str]] = []
    with _Reader(now_s) as reader:
        for one in _targets(runs_dir, expected):
            targets.append(one)
            path = f"{runs_dir}/{one.run}"
            if (row := known.row(one, path)) is not None:
                rows.append((0, row))
            elif (listing := look(path)) is None:
                nowhere.append((one, "no directory but a file" if os.path.lexists(path) else ""))
                rows.append((1, len(nowhere) - 1))
            else:
                reader.add((one, listing))
                rows.append(None)
        read = reader.batches()
    batches = [cached] if cached is not None else []
    batches.append(batch_of([absent(one, *filter(None, [why])) for one, why in nowhere], [""] * len(nowhere), now_s))
    starts = [0, cached.runs.num_rows if cached is not None else 0]
    first_read = sum(batch.runs.num_rows for batch in batches)
    batches += read
    anew = itertools.count(first_read)
    places = [next(anew) if row is None else starts[row[0]] + row[1] for row in rows]
    ordered = joined(batches).take(np.array(places, dtype=np.int64))
    return _named(ordered, targets)


def _targets(runs_dir: str, expected: Iterable[Expected]) -> Iterator[Expected]:
    named = set()
    for one in expected:
        named.add(one.run)
        yield one
    yield from (Expected(name, "", None, in_sheet=False) for name in directories(runs_dir) if name not in named)


class _Known:
    """Rows of the cached batch by the directory's name."""

    def __init__(self, cached: Batch | None) -> None:
        self._rows: dict[str, tuple[int, str, str | None]] = {}
        if cached is not None:
            known = zip(*(cached.runs[name].to_pylist() for name in ("run", "signature", "holds")), strict=True)
            self._rows = {run: (row, its, holds) for row, (run, its, holds) in enumerate(known) if its}

    def row(self, one: Expected, path: str) -> int | None:
        """Where the run's columns are, None where its directory is not as it was then, or holds another run."""
        row, signature, holds = self._rows.get(one.run, (None, "", None))
        if row is None or not (one.fingerprint is None or holds in (None, one.fingerprint)):
            return None
        return row if is_unchanged(path, signature) else None


class _Reader:
    """Reads runs in chunks; once there are many, in further processes, while those to come are still looked for."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s
        self._chunks: list[list[Job]] = []
        self._begun: list[Future[Batch | None]] = []
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def add(self, job: Job) -> None:
        if not self._chunks or len(self._chunks[-1]) == CHUNK:
            self._chunks.append([])
        self._chunks[-1].append(job)
        if len(self._chunks[-1]) == CHUNK and len(self._chunks) * CHUNK >= MANY:
            self._begin()

    def _begin(self) -> None:
        """Hand what there is to other processes."""
        if self._pool is None:
            num_processes = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
            # Forked, a process would inherit Arrow's locks without the threads that hold them.
            self._pool = ProcessPoolExecutor(num_processes, mp_context=multiprocessing.get_context("spawn"))
        for chunk in self._chunks[len(self._begun) :]:
            bare = [(replace(one, config=dict, words=""), listing) for one, listing in chunk]
            self._begun.append(self._pool.submit(_read_chunk_elsewhere, bare, self._now_s))

    def batches(self) -> list[Batch]:
        """All of them, in the order in which they were added."""
        if self._pool is not None:
            self._begin()
        found = [begun.result() for begun in self._begun] or [None] * len(self._chunks)
        return [
            _read_chunk(chunk, self._now_s) if batch is None else batch
            for chunk, batch in zip(self._chunks, found, strict=True)
        ]


def _read_chunk_elsewhere(jobs: Sequence[Job], now_s: float) -> Batch | None:
    """None where the sheet's config is needed, which another process has not got."""
    runs = read_runs(jobs)
    if not all(one.has_own_config for one in runs):
        return None
    return batch_of(runs, _signatures(jobs, now_s), now_s)


def _read_chunk(jobs: Sequence[Job], now_s: float) -> Batch:
    return batch_of(read_runs(jobs), _signatures(jobs, now_s), now_s)


def _signatures(jobs: Iterable[Job], now_s: float) -> list[str]:
    """As the files were before they were read; empty where that says nothing yet."""
    return [listing.signature if now_s - listing.newest_s > YOUNG_S else "" for _, listing in jobs]


def _named(batch: Batch, targets: Sequence[Expected]) -> Batch:
    """With what the sheet says of each run."""
    runs = batch.runs
    found = runs["recipe"].to_pylist()
    recipes = [one.recipe or recipe for one, recipe in zip(targets, found, strict=True)]
    said: dict[str, list[Any]] = {
        "recipe": recipes, "in_sheet": [one.in_sheet for one in targets], "words": [one.words for one in targets],
        "fingerprint": [one.fingerprint for one in targets],
    }  # fmt: skip
    for name, values in said.items():
        runs = runs.set_column(runs.column_names.index(name), name, pa.array(values, runs.schema.field(name).type))
    return replace(batch, runs=runs)
