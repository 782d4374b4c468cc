"""A process that `spawn` has started becomes a rank, and tells what it raised before it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing import connection
from socket import socket

from trainpkg.launch import processes
from trainpkg.launch.calls.function import Call

MAX_REPORT = 30_000  # characters: a pipe that nobody reads yet takes 64 KiB


@dataclass
class Birth:
    """What a process needs to become a rank."""

    env: dict[str, str]
    parent: int
    tethered: bool
    report: connection.Connection
    held: socket | None


def live(rank: int, call: Call, birth: Birth) -> None:
    """A rank: a process group of its own, which ends with its parent; its exception is told before it ends."""
    os.setpgid(0, 0)
    processes.adopt_orphans()
    if birth.tethered:
        processes.die_with_parent(signal.SIGKILL)
    if os.getppid() != birth.parent:
        os._exit(1)
    os.environ.update(birth.env)
    try:
        fn, args = call.load()
        if birth.held is not None:
            birth.held.close()  # as late as can be: fn binds it now
        fn(rank, *args)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # the process's end
        trace = traceback.format_exc()[-MAX_REPORT // 2 :]
        told = {"type": type(error).__name__, "text": str(error)[:2000], "traceback": trace, "time_s": time.monotonic()}
        with contextlib.suppress(OSError):
            birth.report.send_bytes(json.dumps(told, ensure_ascii=False).encode(errors="replace"))
        sys.exit(1)
