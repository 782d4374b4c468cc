"""What a node can find out about its ranks without their help: logs, memory cgroups, stacks, step counters.

Nothing here judges: `failure` and `hang` do, where the words of all nodes come together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import mmap
import re
import time
from collections.abc import Mapping
from pathlib import Path

from trainpkg.last_words import lost_peer_line
from trainpkg.launch import memory, stacks
from trainpkg.launch.wire import Message, shorten

MAX_TEXT = 12_000
MAX_LOG_END = 64_000  # an abort of torch's writes some dozen frames of C++ after the line that tells why
MAX_LINES = 20
STACKS_S = 1.0  # for the ranks to write where they are


def of_log(path: Path, port: int) -> Message:
    """What the end of a log tells. `port`: the one that rank 0, or whoever starts it, is to bind."""
    log = log_end(path)
    taken = says_port_taken(log, port)
    return {"last_lines": end_of(log), "lost_peer": lost_peer_line(log)[:500], "port_taken": taken}


def of_end(path: Path, port: int, cgroup: memory.Place | None, before: memory.Reading | None) -> Message:
    """What its log and its memory cgroup tell of the end of a rank."""
    told = of_log(path, port)
    if cgroup is None or before is None:
        return told
    return told | {"memory": dataclasses.asdict(memory.read(cgroup).since(before))}


class Dumps:
    """What ranks write into their logs when they get `stacks.SIGNAL`. Made before the signal is sent.

    `ranks`: (process, log) of each.
    """

    def __init__(self, ranks: Mapping[int, tuple[int, Path]]) -> None:
        self.ranks = ranks
        self.sizes = {rank: size_of(log) for rank, (_, log) in ranks.items()}
        self.states = {rank: stacks.state_of(pid) for rank, (pid, _) in ranks.items()}

    async def read(self) -> list[Message]:
        """[{ranks, frames, state}], equal ones together, once all have written to the end or their time is over."""
        end, waiting = time.monotonic() + STACKS_S, set(self.ranks)
        found: dict[int, tuple[str, ...]] = {}
        while waiting and time.monotonic() < end:
            await asyncio.sleep(0.1)
            before, found = found, {rank: self._frames(rank) for rank in self.ranks}
            waiting = {rank for rank in waiting if not found[rank] or found[rank] != before.get(rank)}
        groups: dict[tuple[tuple[str, ...], str], list[int]] = {}
        for rank in self.ranks:
            groups.setdefault((found.get(rank, ()), self.states[rank]), []).append(rank)
        return [{"ranks": ranks, "frames": frames, "state": state} for (frames, state), ranks in groups.items()]

    def _frames(self, rank: int) -> tuple[str, ...]:
        return stacks.parse(log_end(self.ranks[rank][1], self.sizes[rank]))


def counter_of(hello: Message) -> mmap.mmap | None:
    """The memory in which a rank counts its steps; None where it has none or this process may not see it."""
    if hello.get("counter_fd") is None:
        return None
    try:
        path = Path(f"/proc/{int(hello['pid'])}/fd/{int(hello['counter_fd'])}")
        if "trainpkg-steps" not in str(path.readlink()):  # in a container the number may be another process's
            return None
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def log_end(path: Path, first: int = 0) -> str:
    """The end of a log, beginning with byte `first` at the earliest; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(first, path.stat().st_size - MAX_LOG_END))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(path: Path) -> list[str]:
    """The last lines of a log, each cut; empty when there is none."""
    return end_of(log_end(path))


def end_of(text: str) -> list[str]:
    """The last lines of a text, each cut."""
    return shorten("\n".join(line[:500] for line in text.splitlines()[-MAX_LINES:]), MAX_TEXT).splitlines()


def says_port_taken(text: str, port: int) -> bool:
    """Whether a log ends with saying that this port is somebody else's, as torch, Python and most programs say it."""
    text = "\n".join(text.splitlines()[-80:])  # torchrun's two tracebacks; what was said long before ended nothing
    return port > 0 and re.search(r"EADDRINUSE|[Aa]ddress already in use", text) is not None and str(port) in text
