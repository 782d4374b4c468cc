"""Linux processes: whose child is whose, who dies with whom, and that nothing is left.

A process that calls `adopt_orphans` becomes the parent of all descendants whose own parent died, also of those that
made a session of their own; so walking down from it finds everything that it ever started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int) -> None:
    """Have the kernel send `signum` to this process when its parent ends. The caller checks that it still lives."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _processes() -> Iterator[tuple[int, int, int, bool]]:
    """(pid, parent, process group, has ended) of every process that this one can see.

    Nodes have thousands, most of them the kernel's own: opened without a buffer, in a third of pathlib's time.
    """
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"{entry.path}/stat", "rb", buffering=0) as file:  # noqa: PTH123
                # the program's name stands in parentheses and may itself hold blanks and parentheses
                state, parent, group = file.read(1024).rpartition(b") ")[2].split(None, 3)[:3]
        except (OSError, ValueError):  # it went away between the two looks
            continue
        yield int(entry.name), int(parent), int(group), state in b"ZX"


def groups() -> Iterator[tuple[int, int]]:
    """(pid, process group) of every living process that this one can see."""
    return ((pid, group) for pid, _, group, ended in _processes() if not ended)


def descendants(pid: int, spare: Collection[int] = ()) -> list[int]:
    """Living processes below `pid`. Those in `spare` are left out; what is below them is not."""
    return _below(pid, list(_processes()), spare)


def _below(pid: int, seen: Iterable[tuple[int, int, int, bool]], spare: Collection[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    living = set()
    for child, parent, _, ended in seen:
        children.setdefault(parent, []).append(child)  # an ended one may have been seen after its child
        if not ended:
            living.add(child)
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        queue += below
        found += [child for child in below if child in living and child not in spare]
    return found


def kill_descendants(spare: Collection[int] = (), timeout_s: float = 5.0) -> list[int]:
    """SIGKILL everything below this process, until nothing is left. Returns what did not die within `timeout_s`.

    Repeated, since a process can fork between the look and the kill. An unkillable one (state D, a dead file system)
    must not hang the end of a job. Ended children that nobody waits for (adopted orphans) are collected; `spare` are
    waited for by others.
    """
    me, end = os.getpid(), time.monotonic() + timeout_s
    while True:
        seen = list(_processes())
        for pid, parent, _, ended in seen:
            if ended and parent == me and pid not in spare:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        left = _below(me, seen, spare)
        if not left or time.monotonic() > end:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def kill_group(pgid: int, signum: int) -> None:
    """Send a signal to a process group that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


def ending(wait_status: int) -> tuple[int | None, int | None]:
    """(exit code, signal) of a status of waitpid: one of them is None."""
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), None
