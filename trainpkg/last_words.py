"""What the last words of a rank mean: that it lost a peer, or that memory ran out. Texts of torch, gloo and NCCL.

Standard library only: a rank asks about its own exception, its node about the log of a rank that could say nothing.
"""

from __future__ import annotations

import re

# As torch 2.13, its gloo and NCCL 2.28 write them.
LOST_PEER = (
    "Connection reset by peer",
    "Connection closed by peer",
    "Connection refused",
    "Broken pipe",
    "Timed out waiting",
    "wait timeout after",
    "Socket Timeout",
    "Failed to recv",
    "Application timeout caused pair closure",
    "connectFullMesh failed",
    "worker hanging",
    "ncclRemoteError",
    "ncclSystemError",
    "remote process exited",
    "NCCL communicator was aborted",
    "Watchdog caught collective operation timeout",
    "due to a collective timeout",
    "due to collective timeout",
)
# NCCL's watchdog also ends the process for a fault of its own GPU, whose text stands where a peer's would.
OWN_FAULT = re.compile(r"(terminated with exception|what\(\)):.{0,200}CUDA error")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")

_NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "Unable to allocate",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_SIZE = re.compile(
    r"(?:[Tt]ried to allocate|Unable to allocate) (?:\(?about )?([\d.]+ ?(?:bytes|[KMGTP]?i?B))",
)


def lost_peer(text: str) -> bool:
    """Whether the text of an exception says that another rank is gone or silent."""
    return any(known in text for known in LOST_PEER)


def lost_peer_line(log: str) -> str:
    """The line of a log's end that says that its process was ended for another rank's sake, or nothing.

    Of a process that aborted, or that ended with an uncaught exception.
    """
    lines = log.splitlines()
    aborts = [number for number, line in enumerate(lines) if line.startswith("terminate called")]
    first = aborts[0] if aborts else max((i for i, line in enumerate(lines) if _EXCEPTION.match(line)), default=None)
    if OWN_FAULT.search(log) or (first is None and "watchdog" not in log.lower()):
        return ""
    return next((line.strip() for line in lines[first or 0 :] if lost_peer(line)), "")


def exception_line(log: str) -> str:
    """The last line of a log's end that names an exception, or nothing."""
    return next((line for line in reversed(log.splitlines()) if _EXCEPTION.match(line)), "")


def memory_asked(kind: str, text: str) -> str | None:
    """None where an exception of type `kind` is no matter of memory, else how much it asked for (`20.00 GiB`)."""
    if kind.rpartition(".")[2] not in ("MemoryError", "OutOfMemoryError") and not any(t in text for t in _NO_MEMORY):
        return None
    found = _SIZE.search(text)
    return "" if found is None else found[1]
