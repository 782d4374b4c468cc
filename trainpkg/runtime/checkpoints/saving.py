"""How a rank's part of a checkpoint comes to the disk: in training's way (`Here`) or beside it (`Beside`).

Both take orders one at a time, to write this rank's part and, on rank 0, to publish what all have written, and have one
answer to each. What the ranks make of their answers belongs to `checkpoint`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainpkg.runtime import manifest
from trainpkg.runtime.checkpoints import retention, scribe
from trainpkg.runtime.checkpoints.shards import Shards
from trainpkg.runtime.signals import SIGNALS

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Part:
    """What this rank writes into `folder`."""

    folder: Path
    texts: Mapping[str, str]  # {file: content}
    file: str  # of the shards
    shards: Shards


@dataclass(frozen=True)
class Answer:
    """What came of an order: this rank's files, or the `problem` as a sentence. `ended_s`: monotonic."""

    files: manifest.Files = field(default_factory=dict)
    problem: str | None = None
    ended_s: float = field(default_factory=time.monotonic)


class Here:
    """Does it at once: training waits."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._scores: retention.Scores = {}

    def write(self, part: Part) -> None:
        try:
            self._answer = Answer(scribe.write_part(part.folder, part.texts, part.file, part.shards.buffers()))
        except OSError as error:
            self._answer = Answer(problem=sentence(error.errno, str(error), part.folder.parent))

    def publish(self, what: retention.Publication) -> None:
        try:
            retention.publish(what, self._scores)
            self._answer = Answer()
        except OSError as error:
            self._answer = Answer(problem=sentence(error.errno, str(error), Path(what.folder)))

    @property
    def ready(self) -> bool:
        return True

    def answer(self) -> Answer:
        return self._answer


class Beside:
    """Copies the shards at once and leaves the rest to a process of its own, while training goes on.

    The memory for the copy and the process are kept for the next save. Where that process is killed, so is this rank's
    life, by a RuntimeError: an accident, after which the launcher starts the ranks again.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned  # memory that a GPU copies to at full speed
        self._memory_fd = os.memfd_create("trainpkg-shards")
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._process: subprocess.Popen[str] | None = None
        self._folder = Path()

    def write(self, part: Part) -> None:
        self._folder = part.folder.parent
        self._make_room(part.shards.num_bytes)
        part.shards.copy_to(self._memory)
        self._order({
            "folder": str(part.folder), "texts": dict(part.texts), "shards": part.file, "size": part.shards.num_bytes,
        })  # fmt: skip

    def publish(self, what: retention.Publication) -> None:
        self._order({"publish": asdict(what)})

    @property
    def ready(self) -> bool:
        """Whether `answer` would not wait."""
        assert self._process is not None and self._process.stdout is not None, "orders come first"
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def answer(self) -> Answer:
        assert self._process is not None and self._process.stdout is not None, "orders come first"
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise RuntimeError(
                f"the process that writes checkpoints beside training ended with status {status} (-9: killed)"
            )
        told: dict[str, Any] = json.loads(line)
        problem = sentence(told["errno"], told["text"], self._folder) if "text" in told else None
        return Answer(told["files"], problem, told["ended_s"])

    def _make_room(self, size: int) -> None:
        if self._memory.numel() >= size:
            return
        os.ftruncate(self._memory_fd, size)
        self._memory = torch.frombuffer(mmap.mmap(self._memory_fd, size), dtype=torch.uint8)
        if self._pinned:
            from torch.cuda._pin_memory_utils import pin_memory

            pin_memory(self._memory.data_ptr(), size)

    def _order(self, order: dict[str, Any]) -> None:
        if self._process is None:
            # What is sent to a rank's whole process group is no business of the scribe's.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            command = [sys.executable, "-m", "trainpkg.runtime.checkpoints.scribe", str(self._memory_fd)]
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pass_fds": [self._memory_fd]}
            self._process = subprocess.Popen(command, text=True, **pipes)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone: there will be no answer
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()


def sentence(number: int | None, text: str, folder: Path) -> str:
    """What the file system refused, for a user."""
    if number not in _FULL:
        return f"{text}; earlier checkpoints are intact"
    usage = shutil.disk_usage(folder)
    return (
        f"no space left ({usage.free:,} of {usage.total:,} bytes free there, or a quota or file-size limit reached); "
        "earlier checkpoints are intact; free space or set results_dir to another file system, then start again"
    )
