"""When to stop: signals and the `stop` file set one flag, and all ranks agree on it at a step boundary.

Handlers only set the flag: a checkpoint written inside a handler starts at an arbitrary point and may never complete.
What follows from the flag (save, ask to be run again) belongs to `train`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """This rank's own wish to stop: why and since when. Not yet the agreement of all ranks."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.since: float | None = None
        self.file: Path | None = None
        self._pid = os.getpid()

    def install(self) -> None:
        """Take over USR2, USR1, TERM and INT, and let them through (a forking parent may have blocked them)."""
        self._pid = os.getpid()
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Forked helpers (loader workers) inherit this handler; the signal is for the rank alone.
        if os.getpid() == self._pid:
            self.request(signal.Signals(number).name)

    def request(self, reason: str) -> None:
        """Set the flag; the first reason stays."""
        if self.reason is None:
            self.since = time.monotonic()
            self.reason = reason

    def poll(self) -> bool:
        """Whether this rank wants to stop; looks for the stop file too (one stat)."""
        if self.reason is None and self.file is not None and self.file.exists():
            self.request(f"file {self.file}")
        return self.reason is not None

    def honoured(self, step: int) -> None:
        """All ranks stop at `step` and the state is saved. The stop file goes, so the next attempt goes on."""
        waited_s = 0.0 if self.since is None else time.monotonic() - self.since
        reason = f"{self.reason}, honoured after {waited_s:.1f} s" if self.reason else "asked for on another rank"
        print(f"stops at step {step}: {reason}", flush=True)
        if self.file is not None:
            self.file.unlink(missing_ok=True)


class Cadence:
    """At which steps the ranks meet: a request is noticed within about `latency_s`, and meeting costs next to nothing.

    Next to nothing because a device is waited for once a second at most: in every step, it would never have work ahead.
    The distance follows the slowest rank's measured step time, which all ranks learn at each meeting: so all ranks
    compute the same distance, and none waits alone in a collective.
    """

    def __init__(self, latency_s: float = 1.0, most_steps: int = 1000) -> None:
        self._latency_s = latency_s
        self._most_steps = most_steps
        self._next = 0

    def due(self, step: int) -> bool:
        return step >= self._next

    def met(self, step: int, slowest_step_s: float) -> None:
        """Set the next meeting, from the slowest rank's mean step time in seconds since the last one."""
        distance = int(self._latency_s / max(slowest_step_s, 1e-6))
        self._next = step + min(max(distance, 1), self._most_steps)
