"""The machine as the checks see it: files below a root, an environment, limits, names, programs with a time limit.

Every way to the outside is a field, so that a test looks at a tree of files in the place of a machine.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from trainpkg.launch import names, network
from trainpkg.launch.names import Lookup
from trainpkg.launch.network import InterfaceAddress

T = TypeVar("T")
PROGRAM_LIMIT_S = 10.0
LOOKUP_LIMIT_S = 5.0  # a resolver without an answer tries for 10 s and more; so much is a finding already


@dataclass(frozen=True)
class Answer:
    """What a program said. `status` is None where it did not end in time, 127 where there is none of that name."""

    status: int | None
    out: str = ""
    error: str = ""
    seconds: float = 0.0


def run_program(
    command: Sequence[str], limit_s: float = PROGRAM_LIMIT_S, env: Mapping[str, str] | None = None
) -> Answer:
    """Run to the end, or to the end of the limit. Raises nothing. `env` replaces the environment."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            env=env,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, error=f"no answer within {limit_s:g} s", seconds=limit_s)
    except OSError as error:
        return Answer(127, error=error.strerror or str(error))
    return Answer(done.returncode, done.stdout, done.stderr.strip(), time.monotonic() - began)


def within(limit_s: float, work: Callable[[], T]) -> tuple[T | None, str, float]:
    """The result, why there is none, and the seconds. A call that does not return is left behind in its thread."""
    done: list[T] = []
    problem = [f"no answer within {limit_s:g} s"]
    began = time.monotonic()

    def call() -> None:
        try:
            done.append(work())
        except (OSError, UnicodeError) as error:
            problem[0] = getattr(error, "strerror", None) or str(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(limit_s)
    return (done[0] if done else None), "" if done else problem[0], time.monotonic() - began


def forward(name: str) -> Lookup:
    """The addresses of a name, asked for with a limit."""
    found, problem, seconds = within(LOOKUP_LIMIT_S, lambda: names.forward(name))
    return found or Lookup("forward", name, [], seconds, problem)


def reverse(address: str) -> Lookup:
    """The name of an address, asked for with a limit."""
    found, problem, seconds = within(LOOKUP_LIMIT_S, lambda: names.reverse(address))
    return found or Lookup("reverse", address, [], seconds, problem)


@dataclass(frozen=True)
class Machine:
    """This machine, unless a test says otherwise."""

    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    hostname: str = field(default_factory=socket.gethostname)
    addresses: Sequence[InterfaceAddress] = field(default_factory=network.own_addresses)
    num_cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    num_cpus_online: int = field(default_factory=lambda: os.cpu_count() or 1)
    sys_path: Sequence[str] = field(default_factory=lambda: tuple(sys.path))
    in_venv: bool = field(default_factory=lambda: sys.prefix != sys.base_prefix)
    run: Callable[[Sequence[str]], Answer] = run_program
    forward: Callable[[str], Lookup] = forward
    reverse: Callable[[str], Lookup] = reverse
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit
    clock: Callable[[], float] = time.time

    def path(self, absolute: str) -> Path:
        """Where a file of this machine lies."""
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str:
        """The text of a small file, without the blanks around it; empty where it cannot be read."""
        try:
            return self.path(absolute).read_text(errors="replace").strip()
        except OSError:
            return ""

    def names_in(self, absolute: str) -> list[str]:
        """The names in a folder, sorted; empty where there is none."""
        try:
            return sorted(entry.name for entry in self.path(absolute).iterdir())
        except OSError:
            return []

    def which(self, program: str) -> str | None:
        return shutil.which(program, path=self.env.get("PATH", os.defpath))

    def runs_ranks(self, wanted: Wanted) -> bool:
        """Whether ranks run here: on compute nodes, and where there is no Slurm. Login nodes may lack their devices."""
        return wanted.on_node or self.which("sbatch") is None


@dataclass(frozen=True)
class Wanted:
    """What a job expects of the machine, as far as it is known; the defaults expect little."""

    on_node: bool = False  # a compute node, in the job's own step; else where people type
    results_dir: Path | None = None
    num_cpus: int = 0
    num_ranks: int = 1  # of this node
    world_size: int = 1
    hosts: tuple[str, ...] = ()  # of all nodes
    head: str = ""  # address of the first node, seen from the others
    device: str = "auto"
    backend: str = "spawn"
    preset: str = "none"
    env: Mapping[str, str] = field(default_factory=dict)  # that ranks get on top of the machine's
