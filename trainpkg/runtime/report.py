"""What a rank tells its node's launcher: one JSON object per line over the unix socket named by TRAINPKG_REPORT.

Standard library only. Reporting never stops or slows training: a launcher that does not read, or is gone, costs lines,
not steps. Who is to blame for a failure is decided by the launcher, from these records.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

STEP_INTERVAL_S = 0.2
ALIVE_INTERVAL_S = 10.0
SEND_TIMEOUT_S = 5.0


class Reporter:
    """The rank's side of the socket. Without a socket (`connection` None) every method does nothing."""

    def __init__(self, rank: int, connection: socket.socket | None) -> None:
        self.rank = rank
        self.step_now: int | None = None
        self._connection = connection
        self._unsent = b""
        self._last_step_at = self._last_alive_at = float("-inf")
        self._phase = ""
        # Each step is counted in memory that the node's launcher maps: exact at any moment, and no line per step.
        self._counter_fd = os.memfd_create("trainpkg-steps") if connection is not None else None
        self._counter = None
        if self._counter_fd is not None:
            os.ftruncate(self._counter_fd, 8)
            self._counter = mmap.mmap(self._counter_fd, 8)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Reporter:
        """A reporter connected to TRAINPKG_REPORT, or one that is silent where the variable is unset."""
        rank = int(environ.get("RANK", "0"))
        path = environ.get("TRAINPKG_REPORT")
        if not path:
            return cls(rank, None)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(SEND_TIMEOUT_S)
        try:
            connection.connect("\0" + path[1:] if path.startswith("@") else path)  # @: a name in no file system
        except OSError as error:
            print(f"warning: TRAINPKG_REPORT = {path}: {error}; this rank reports nothing", file=sys.stderr, flush=True)
            connection.close()
            return cls(rank, None)
        return cls(rank, connection)

    def hello(self) -> None:
        self._send({"event": "hello", "pid": os.getpid(), "counter_fd": self._counter_fd})

    def joined(self, seconds: float, device: str) -> None:
        self._send({"event": "joined", "seconds": round(seconds, 4), "device": device})

    def step(self, step: int, total: int | None) -> None:
        """Steps done of all (None: nobody knows); at most about five a second reach the launcher, always the first and
        the last."""
        first, last, self.step_now = self.step_now is None, total is not None and step >= total, step
        if self._phase:  # of the first step
            self.busy("")
        if self._counter is not None:
            struct.pack_into("q", self._counter, 0, step)
        now = time.monotonic()
        if first or last or now - self._last_step_at >= STEP_INTERVAL_S:
            self._last_step_at = now
            self._send({"event": "step", "step": step, "total": total}, may_drop=not first and not last)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Work besides steps, while which none is to be expected: evaluating, saving, publishing, result."""
        before = self._phase
        self.busy(name)
        try:
            yield
        finally:
            self.busy(before)

    def busy(self, phase: str) -> None:
        """From now on this rank is in `phase`; empty: it does steps."""
        self._phase, self._last_alive_at = phase, time.monotonic()
        self._send({"event": "busy", "phase": phase})

    def alive(self) -> None:
        """A sign of progress within a long phase; told every few seconds at most."""
        if time.monotonic() - self._last_alive_at >= ALIVE_INTERVAL_S:
            self.busy(self._phase)

    def saved(self, step: int, seconds: float) -> None:
        self._send({"event": "saved", "step": step, "seconds": round(seconds, 3)})

    def exception(
        self, error: BaseException, traceback: str, victim: bool, user_error: bool, collective: bool = False
    ) -> None:
        """`victim`: the error is a lost peer, so another rank is the cause; `user_error`: its text says what to do;
        `collective`: it came out of a collective operation, so it may be a lost peer in words that nobody knows.
        """
        self._send(
            {
                "event": "exception",
                "type": type(error).__name__,
                "message": str(error)[:4000],
                "traceback": traceback[-16000:],
                "step": self.step_now,
                "victim": victim,
                "user_error": user_error,
                "collective": collective,
            }
        )

    def done(self, verdict: str, step: int | None = None) -> None:
        self._send({"event": "done", "verdict": verdict, "step": self.step_now if step is None else step})

    def _send(self, record: dict[str, Any], may_drop: bool = False) -> None:
        if self._connection is None:
            return
        line = json.dumps({"rank": self.rank, **record}).encode() + b"\n"
        try:
            if may_drop:
                if not self._unsent:  # behind a half-sent line nothing else may go out
                    self._connection.setblocking(False)
                    self._unsent = line[self._connection.send(line) :]
            else:
                self._connection.settimeout(SEND_TIMEOUT_S)
                pending, self._unsent = self._unsent + line, b""
                self._connection.sendall(pending)
        except BlockingIOError:
            return
        except OSError as error:
            print(f"warning: the launcher reads no reports any more ({error})", file=sys.stderr, flush=True)
            self._connection.close()
            self._connection = None
