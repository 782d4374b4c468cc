"""Ends whatever a call of `spawn` has started, wherever it hides: by process group, by ancestry, by a mark.

What a rank executes inherits the mark in its environment; what it merely forks stays in the rank's process group or
among its descendants. `keep` is the life of the keeper, a process beside the ranks: it waits for the end of the parent
and then sweeps, as nobody else is left to do when the parent is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection
from pathlib import Path

from trainpkg.launch import processes

VARIABLE = "TRAINPKG_SPAWN"


def marked(mark: str, ranks: Collection[int]) -> list[int]:
    """Living processes that carry the mark, are ranks or in the process group of one, or descend from such a one.

    `ranks` are those that nobody has waited for yet: the number of any other may be an innocent process's by now.
    """
    found: set[int] = set()
    for pid, group in processes.groups():
        if pid in ranks or group in ranks or _carries(pid, mark):
            found |= {pid, *processes.descendants(pid)}
    return sorted(found - {os.getpid()})


def _carries(pid: int, mark: str) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False
    return any(one.startswith(f"{VARIABLE}=".encode()) and mark.encode() in one for one in variables)


def sweep(mark: str, ranks: Collection[int], timeout_s: float = 5.0) -> list[int]:
    """SIGKILL all of them until none is left. Returns what did not die in time."""
    end = time.monotonic() + timeout_s
    while (left := marked(mark, ranks)) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return left


def keep(parent: int, mark: str) -> None:
    """Hear of ranks that begin (`+41`) and end (`-41`), until `done`; sweep when the parent has ended."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the parent, whose end says all
        signal.signal(signum, signal.SIG_IGN)
    ranks: set[int] = set()
    try:
        ended = os.pidfd_open(parent)
    except ProcessLookupError:
        sweep(mark, ranks)
        return
    os.set_blocking(0, False)
    waiting, text = [ended, 0], b""
    while True:
        ready = select.select(waiting, [], [])[0]
        more = None
        with contextlib.suppress(BlockingIOError):
            more = os.read(0, 65536)
        if more == b"" and 0 in waiting:
            waiting.remove(0)  # whether the parent has ended the other descriptor says
        *lines, text = (text + (more or b"")).split(b"\n")
        if b"done" in lines:
            return
        for line in lines:
            (ranks.add if line.startswith(b"+") else ranks.discard)(int(line[1:]))
        if ended in ready:
            sweep(mark, ranks)
            return
