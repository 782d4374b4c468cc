"""Commands that are measured: with a clock, a limit, one log, and none of their processes left at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


POLL_S = 0.005


# A child's peak counts what its parent held before the exec: a small one starts the command and answers for it.
ACCOUNT = """\
import json, os, resource, subprocess, sys, time
began = time.monotonic()
status = subprocess.call(sys.argv[2:], stdin=subprocess.DEVNULL)
wall_s, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
its = {"wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime, "memory_mb": used.ru_maxrss * 1024 / 1e6}
json.dump(its, open(sys.argv[1], "w"))
sys.exit(status if status >= 0 else 128 - status)
"""


class Unsuccessful(Exception):
    """A way that did not do what was measured; the sentence says what it did instead."""


@contextmanager
def folder() -> Iterator[Path]:
    """One that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        yield Path(name)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def path() -> str:
    """PYTHONPATH that finds this checkout first."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def output_of(command: Sequence[str], limit_s: float = 600.0, **environment: str) -> str:
    """Standard output of a command that must end well."""
    started = Commands([list(command)], environment)
    with started:
        started.wait(limit_s)
    return started.text


def used_by(
    command: Sequence[str], limit_s: float = 3600.0, place: Path | None = None, **environment: str
) -> dict[str, float]:
    """Wall seconds, CPU seconds and largest resident memory in MB of a command that must end well, with its children.

    `place`: where it runs, and leaves what it said in a file `said`.
    """
    with folder() as own:
        account = ["-I", "-S", "-c", ACCOUNT, str(own / "account.json"), *command]
        with Commands([python(*account)], environment, place, threads=None) as started:
            started.wait(limit_s)
        if place is not None:
            (place / "said").write_text(started.text)
        its: dict[str, float] = json.loads((own / "account.json").read_text())
        return its


class Commands:
    """Commands that run at the same time, such as one per node, with a clock from their start and one log.

    As a context: at its end no process of them is left. They and all that they start know each other by a variable.
    """

    def __init__(
        self,
        commands: Sequence[list[str]],
        environment: Mapping[str, str] | None = None,
        place: Path | None = None,
        threads: int | None = 1,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self._log = tempfile.NamedTemporaryFile(prefix="bench-", suffix=".log", mode="w")  # noqa: SIM115
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)) if threads else {}
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        env = own | limits | {"PYTHONPATH": path(), "BENCH_MARK": self.mark} | dict(environment or {})
        self._kept: str | None = None  # what was said, once the log is gone
        self.began = time.monotonic()
        self.processes = [
            subprocess.Popen(
                command, env=env, cwd=place, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
            )
            for command in commands
        ]

    @property
    def text(self) -> str:
        return Path(self._log.name).read_text(errors="replace") if self._kept is None else self._kept

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


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def private_mb(pid: int) -> float:
    """Memory that no other process shares, in 10^6 bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6
