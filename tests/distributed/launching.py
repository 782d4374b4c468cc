"""Launches of test entries for tests: started, perhaps disturbed, waited for, and nothing left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0  # of a launch whose ranks need no torch; `limit_s` gives others more


@dataclass
class Launch:
    """One launch; `environment` has TEST_* variables."""

    folder: Path
    launch: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    limit_s: float = LIMIT_S
    prefix: list[str] = field(default_factory=list)  # a program that becomes the launch
    output: str = ""
    status: int | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.mark = f"{self.folder}:{time.monotonic_ns()}"
        self.log = self.folder.with_suffix(".log")

    @property
    def out(self) -> Path:
        return self.folder / "train.json"

    def start(self) -> subprocess.Popen[bytes]:
        spec = {"entry": "tests.distributed.entries:steps", "preload": ["json"]} | self.spec
        spec = {name: value for name, value in spec.items() if value is not None}  # None: the stage's own
        given = json.dumps({"launch": self.launch, "spec": spec, **self.more})
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        own |= {"OMP_NUM_THREADS": "1", "TEST_MARK": self.mark} | self.environment
        with self.log.open("wb") as file:
            return subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "tests.distributed.launched", str(self.out), given],
                cwd=ROOT, env=own, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def run(self, disturb: Callable[[Launch, subprocess.Popen[bytes]], None] | None = None) -> Launch:
        """Start, disturb, wait; asserts that nothing is left within 5 s of the end."""
        begin = time.monotonic()
        process = self.start()
        try:
            if disturb is not None:
                disturb(self, process)
            self.status = process.wait(self.limit_s)
        finally:
            process.kill()
            process.wait()
            self.seconds = time.monotonic() - begin
            self.output = self.log.read_text()
            left = self.left(5.0)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        assert not left, f"left behind: {left}\n{self.output}"
        return self

    def left(self, patience_s: float = 0.0) -> list[int]:
        """Living processes of this launch, found by their environment, once those that are dying have died."""
        end = time.monotonic() + patience_s
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def processes(self, *words: str) -> list[int]:
        """Living processes of this launch whose command line has all these words."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if f"TEST_MARK={self.mark}\0".encode() not in (entry / "environ").read_bytes():
                    continue
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                state = (entry / "stat").read_text(errors="replace").rpartition(") ")[2][0]
            except OSError:
                continue
            if state not in "ZX" and all(word in command for word in words):
                found.append(int(entry.name))
        return found

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + self.limit_s
        while not condition():
            assert time.monotonic() < end, f"waited in vain for {what}: {self.log.read_text()}"
            time.sleep(0.02)

    def wait_for_line(self, text: str) -> None:
        self.wait_for(lambda: text in self.log.read_text(), text)

    def file(self, name: str, attempt: int = 1) -> Any:
        """A JSON file of an attempt."""
        return json.loads((self.folder / "launch" / str(attempt) / name).read_text())

    @property
    def last_line(self) -> str:
        return self.output.rstrip().splitlines()[-1]
