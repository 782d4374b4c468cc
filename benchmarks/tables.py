"""What `trainpkg summarise` costs over the number of runs, beside plain pandas loops and polars on the same results.

Synthetic results (results_tree.py). `summarise`: with no cache; `again`: with nothing new; `10 more`: with ten more
runs. The peers (peers/pandas_tables.py, peers/polars_tables.py) make a part of its tables and one of its plots, and
have no cache. Wall time is from the command's start to its end, processor time is of all its processes, peak memory of
the largest.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.commands import ROOT, folder, python, used_by
from benchmarks.harness import Figure, Part, Plot, Row, Scale, interleaved
from benchmarks.results_tree import write_runs, write_sheet

MORE = 10
SETTLE_S = 4.0  # files younger than that are not relied on
PEERS = {"pandas loops": "pandas_tables.py", "polars": "polars_tables.py"}


def summarise(config: Path, anew: bool) -> Mapping[str, float]:
    if anew:
        for name in ("tables", "plots"):
            shutil.rmtree(config.parent / "results" / name, ignore_errors=True)
    return used_by(python("-m", "trainpkg", "summarise", "--config", str(config)))


def more(config: Path, num_runs: int) -> Mapping[str, float]:
    """With ten runs that were not there the last time, which was `summarise again`."""
    write_runs(write_sheet(config.parent, num_runs + MORE), num_runs)
    time.sleep(SETTLE_S)
    try:
        return summarise(config, anew=False)
    finally:
        for number in range(num_runs, num_runs + MORE):
            shutil.rmtree(config.parent / f"results/runs/run{number:05d}")
        write_sheet(config.parent, num_runs)


def theirs(script: str, results: Path) -> Mapping[str, float]:
    out = results.parent / "peer"
    shutil.rmtree(out, ignore_errors=True)
    return used_by(python(str(ROOT / "benchmarks/peers" / script), str(results), str(out)))


def measure(scale: Scale) -> Iterator[Row]:
    for size in (20,) if scale.tiny else (100, 1000, 10_000, 27_270) if scale.full else (100, 1000):
        with folder() as place:
            config = write_sheet(place, size)
            write_runs(config, 0)
            time.sleep(SETTLE_S)
            ways = {"summarise": partial(summarise, config, True), "summarise again": partial(summarise, config, False)}
            ways |= {"summarise, 10 more": partial(more, config, size)}
            ways |= {name: partial(theirs, script, place / "results") for name, script in PEERS.items()}
            once = () if scale.full else ("pandas loops",)  # 44 s
            if size == 100 and not scale.full:  # start-up alone
                ways = {"summarise": ways["summarise"], "polars": ways["polars"]}
            if size > 1000:  # both grow with the runs; the one would take 20 minutes of 27,270, the other 4
                del ways["pandas loops"]
                once = ("polars",)
            yield from interleaved(f"{size:,} runs", ways, scale.repetitions, size=size, warm_up=False, once=once)


PART = Part(
    "tables",
    "Tables and plots",
    "growth linear, below 60 s at 27,270 runs",
    "summarise",
    (
        Figure("wall_s", "wall", "s"),
        Figure("cpu_s", "CPU", "s"),
        Figure("memory_mb", "peak memory", "MB", None),
    ),
    measure,
    (Plot("growth", "wall_s", sizes="runs"), Plot("growth", "cpu_s", sizes="runs")),
)
