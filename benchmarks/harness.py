"""What all parts of the benchmark share: repetitions in turn, the machine, results' files. Commands: `commands`.

A part measures and yields rows: `case` and `way` say what was measured, `round` which repetition, all else are figures.
Rows of one case and round were measured one right after the other, and only such rows are compared. What a table says
of them is `report`'s. Nothing here passes or fails: a way that ends badly is a row with `failed`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from benchmarks.commands import Unsuccessful

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "lightning", "accelerate", "transformers", "snakemake", "pandas", "polars")
Row = dict[str, Any]
Way = Callable[[], Mapping[str, float]]  # measures once; returns figures


@dataclass(frozen=True)
class Scale:
    """How much is measured: `full` is every size and what needs a Slurm, else what fits into half an hour.

    `tiny`: one round at the smallest size, to see that a part works; nothing is kept.
    """

    repetitions: int
    full: bool
    tiny: bool = False


@dataclass(frozen=True)
class Figure:
    """A column. `better`: whose ratios are told, and which way; None: the figure stands for itself."""

    key: str
    name: str
    unit: str
    better: Literal["less", "more"] | None = "less"


@dataclass(frozen=True)
class Plot:
    """`ratio`: to the way `beside`, over `size`; `bars`: the same by case; `growth`: over `size`, on log axes."""

    kind: Literal["ratio", "bars", "growth"]
    figure: str
    beside: str = ""
    sizes: str = ""  # what `size` counts


@dataclass(frozen=True)
class Part:
    """One row of the list of what is measured. `ours`: the way that others are compared with."""

    name: str
    title: str
    goal: str
    ours: str
    figures: tuple[Figure, ...]
    measure: Callable[[Scale], Iterator[Row]]
    plots: tuple[Plot, ...] = ()
    needs: Callable[[Scale], str | None] = field(default=lambda scale: None)  # why it cannot be measured here


def interleaved(
    case: str,
    ways: Mapping[str, Way],
    repetitions: int,
    warm_up: bool = True,
    once: Collection[str] = (),
    **common: Any,
) -> Iterator[Row]:
    """Each way once per round, in turn; with `warm_up` a round before that fills caches and is not told.

    `once`: ways that are there in the first round alone, since they take long.
    """
    for number in range(0 if warm_up else 1, repetitions + 1):
        for way, measure in ways.items():
            if number > 1 and way in once:
                continue
            row: Row = {"case": case, "way": way, "round": number, **common}
            began, load = time.monotonic(), os.getloadavg()[0]
            try:
                row |= measure()
            except Unsuccessful as error:
                row["failed"] = str(error)
            row |= {"load": round(load, 2), "took_s": round(time.monotonic() - began, 2)}
            print(("warm-up " if not number else "") + told(row), flush=True)
            if number:
                yield row


def told(row: Row) -> str:
    """A row as a line."""
    return "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )


def machine() -> dict[str, Any]:
    """What a reader has to know beside the figures."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return {
        "date": date.today().isoformat(), "cores": os.cpu_count(), "processor": model, "memory_gb": round(memory_gb),
        "python": platform.python_version(), "linux": platform.release().split("-")[0], "versions": versions,
        "nice": os.nice(0),
    }  # fmt: skip


def measure(part: Part, scale: Scale) -> None:
    """Measure a part and replace its results' file, when it is over."""
    why = part.needs(scale)
    if why:
        print(f"{part.name}: not measured: {why}", flush=True)
        return
    print(f"--- {part.name}: {part.title}", flush=True)
    began = time.monotonic()
    rows = list(part.measure(scale))
    result = {
        "part": part.name, "full": scale.full, "repetitions": scale.repetitions, "machine": machine(),
        "took_s": round(time.monotonic() - began), "rows": rows,
    }  # fmt: skip
    if scale.tiny:
        return
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{part.name}.json").write_text(json.dumps(result, indent=1) + "\n")
