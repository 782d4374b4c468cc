"""A program that `launch` runs to start others on the nodes (srun, mpirun), and what it says while it does.

Its words are shown as they come and written to a log; the last of them are kept, since they are all that is known when
no task ever appears. Which command it is, and what its tasks do, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainpkg.launch.head.blame import step_words
from trainpkg.launch.head.blame.sentences import signal_name

BUSY = re.compile(r"step creation (temporarily|still) disabled")
CREATED = re.compile(r"Step created for")
BUSY_TIMEOUT_S = 30.0  # the last generation's step may still be on its way out; srun itself would wait for ever
KEPT_LINES = 12
SHOWN_LINES = 40  # each of thousands of tasks may have the same to say


class Step:
    """One such program. It is ended when `launch` is; srun and mpirun end their tasks then. Needs a running loop."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], say: Callable[[str], None], log: Path) -> None:
        self.name, self.say, self.log = command[0], say, log
        self.num_lines = 0
        self.words: deque[str] = deque(maxlen=KEPT_LINES)
        self.task_ends: dict[int, step_words.End] = {}  # what srun said of tasks that ended badly; the first word stays
        self.refused: dict[str, str] = {}  # hosts that srun could start no task on, and its words
        self.busy_s: float | None = None  # since when srun waits for resources
        self._rest = b""
        tether = [sys.executable, "-m", "trainpkg.launch.tether", str(os.getpid()), str(int(signal.SIGTERM))]
        self.process = subprocess.Popen(
            [*tether, *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._pipe = self.process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data:
            asyncio.get_running_loop().remove_reader(self._pipe)
            self.process.stdout.close()
            lines, self._rest = [self._rest] if self._rest else [], b""
        for line in lines:
            self._take(line.decode(errors="replace").rstrip())

    def _take(self, line: str) -> None:
        if not line:
            return
        self.words.append(line)
        self.num_lines += 1
        self.task_ends = step_words.ends(line) | self.task_ends
        self.refused |= step_words.unlaunched(line)
        with self.log.open("a") as file:
            file.write(f"{line}\n")
        if self.num_lines <= SHOWN_LINES:
            self.say(line)
        elif self.num_lines == SHOWN_LINES + 1:
            self.say(f"what {self.name} says further is in {self.log}")
        if BUSY.search(line):
            self.busy_s = self.busy_s or time.monotonic()
        elif CREATED.search(line):
            self.busy_s = None

    def ended(self) -> str:
        """Why no task will come (any more), or nothing: the program has ended, or waits in vain for resources."""
        code = self.process.poll()
        said = f": {self.words[-1]}" if self.words else ""
        if code is not None:
            how = f"by {signal_name(-code)}" if code < 0 else f"with status {code}"
            return f"{self.name} ended {how}{said}"
        if self.busy_s is not None and time.monotonic() - self.busy_s > BUSY_TIMEOUT_S:
            return (
                f"{self.name} got no resources within {BUSY_TIMEOUT_S:g} s{said}. Another step of this job holds them "
                "and shares them with none; `squeue --steps` shows it"
            )
        return ""

    def end(self, grace_s: float) -> None:
        """Wait so long for it to end by itself, then end it. Blocks."""
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            if signum is not None:
                self.process.send_signal(signum)
            try:
                self.process.wait(grace_s if signum is None else 10.0)
                return
            except subprocess.TimeoutExpired:
                continue
