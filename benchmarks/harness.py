"""What all parts of the benchmark share: repetitions in turn, commands with their clock, the machine, results' files.

A part measures and yields rows: `case` and `way` say what was measured, `round` which repetition, all else are figures.
Rows of one case and round were measured one right after the other, and only such rows are compared. What a table says
of them is `report`'s. Nothing here passes or fails: a way that ends badly is a row with `failed`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "lightning", "accelerate", "transformers", "snakemake", "pandas", "polars")
POLL_S = 0.005
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
    case: str, ways: Mapping[str, Way], repetitions: int, warm_up: bool = True, **common: Any
) -> Iterator[Row]:
    """Each way once per round, in turn; with `warm_up` a round before that fills caches and is not told."""
    for number in range(0 if warm_up else 1, repetitions + 1):
        for way, measure in ways.items():
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


class Unsuccessful(Exception):
    """A way that did not do what was measured; the sentence says what it did instead."""


@contextmanager
def folder() -> Iterator[Path]:
    """One that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        yield Path(name)


def output_of(command: Sequence[str], limit_s: float = 600.0, **environment: str) -> str:
    """Standard output of a command that must end well."""
    started = Commands([list(command)], environment)
    with started:
        started.wait(limit_s)
    return started.text


class Commands:
    """Commands that run at the same time, such as one per node, with a clock from their start and one log.

    As a context: at its end no process of them is left. They and all that they start know each other by a variable.
    """

    def __init__(self, commands: Sequence[list[str]], environment: Mapping[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self._log = tempfile.NamedTemporaryFile(prefix="bench-", suffix=".log", mode="w")  # noqa: SIM115
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        env = own | threads | {"PYTHONPATH": path(), "BENCH_MARK": self.mark} | dict(environment or {})
        self._kept = ""  # what was said, once the log is gone
        self.began = time.monotonic()
        self.processes = [
            subprocess.Popen(command, env=env, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True)
            for command in commands
        ]

    @property
    def text(self) -> str:
        return self._kept or Path(self._log.name).read_text(errors="replace")

    @property
    def clock_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def over(self) -> bool:
        return None not in self.statuses

    def until(self, condition: Callable[[], object], limit_s: float, what: str) -> float:
        """Seconds since the start at which the condition first holds; Unsuccessful when it does not in time."""
        while not condition():
            if self.over and not condition():
                raise Unsuccessful(f"ended with {self.statuses} before {what}: {last_line(self.text)}")
            if self.clock_s > limit_s:
                raise Unsuccessful(f"no {what} within {limit_s:.0f} s: {last_line(self.text)}")
            time.sleep(POLL_S)
        return self.clock_s

    @property
    def statuses(self) -> list[int | None]:
        return [process.poll() for process in self.processes]

    def wait(self, limit_s: float, well: bool = True) -> float:
        """Seconds until all have ended; Unsuccessful where that takes longer, or (`well`) where one ends badly."""
        while not self.over:
            if self.clock_s > limit_s:
                raise Unsuccessful(f"still running after {limit_s:.0f} s: {last_line(self.text)}")
            time.sleep(POLL_S)
        took_s = self.clock_s
        if well and any(self.statuses):
            raise Unsuccessful(f"ended with {self.statuses}: {last_line(self.text)}")
        return took_s

    def left(self) -> list[int]:
        """Living processes that these commands have started, themselves included."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if f"BENCH_MARK={self.mark}\0".encode() not in (entry / "environ").read_bytes():
                        continue
                    state = (entry / "stat").read_text(errors="replace").rpartition(") ")[2][0]
                except OSError:
                    continue
                if state not in "ZX":
                    found.append(int(entry.name))
        return found

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept = self.text
        while pids := self.left():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
        for process in self.processes:
            process.wait()
        if directory := os.environ.get("BENCH_KEEP"):
            shutil.copy(self._log.name, directory)
        self._log.close()


def path() -> str:
    """PYTHONPATH that finds this checkout first."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def private_mb(pid: int) -> float:
    """Memory that no other process shares, in 10^6 bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


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


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
