"""The JSON lines that a program of the user's own writes somewhere, brought into the run's metrics.jsonl as they come.

`entry.metrics` names the file. What stood in it before this generation began was another one's. Nothing here ends a
run: a file that never appears leaves the tables without records.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import operator
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from trainpkg.launch.head.own import is_there
from trainpkg.launch.spec import Spec
from trainpkg.metric_lines import Lines, append

MAX_BYTES = 16 * 1024 * 1024  # at a look, so that the launcher goes on hearing its nodes
MARK_BYTES = 256


class Collected:
    """Follows the file through one generation. Without `spec.metrics` it does nothing."""

    def __init__(self, spec: Spec, generation: int, say: Callable[[str], None]) -> None:
        self._target = Path(spec.run_dir) / "metrics.jsonl"
        self._path = Path(spec.metrics) if spec.metrics and Path(spec.metrics) != self._target else None
        self._lines = Lines(spec.attempt, generation, spec.began_unix_s)
        self._say, self._refused = say, False
        self._offset, self._mark = 0, b""
        # a hash of each line that was read, and of those that stood in the file before it began anew
        self._read, self._stood = array("q"), array("q")
        if self._path is None:
            return
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            self._read.extend(map(hash, file))
            self._offset = file.tell()
            self._mark = self._before(self._offset)

    def look(self, at_the_end: bool = False) -> None:
        """Take what is new: whole lines, and at the end all there is, also a last one without its newline."""
        if self._path is None or (at_the_end and not is_there(self._path)):
            return
        while self._take() and at_the_end:
            pass
        if at_the_end:
            self._take(also_torn=True)

    def _take(self, also_torn: bool = False) -> bool:
        """Take one piece; whether there was one. What cannot be written is tried again at the next look."""
        try:
            new = self._new()
        except OSError:
            return False
        whole = new[: len(new) if also_torn else new.rfind(b"\n") + 1]
        lines, now = list(io.BytesIO(whole)), time.time()
        hashes = array("q", map(hash, lines))
        old = self._stood[len(self._read) :]
        num_old = sum(1 for _ in itertools.takewhile(bool, map(operator.eq, hashes, old)))
        texts = [text for line in lines[num_old:] for text in line.splitlines()]
        try:
            append(self._target, [line for text in texts for line in self._taken(text, now)])
        except OSError as error:
            if not self._refused:
                self._say(f"warning: what {self._path} says cannot be added to {self._target}: {error.strerror}")
            self._refused = True
            return False
        self._offset += len(whole)
        self._mark = (self._mark + whole)[-MARK_BYTES:]
        self._read += hashes
        if num_old < len(lines):
            del self._stood[:]
        return bool(whole)

    def _new(self) -> bytes:
        """What lies behind that which was read.

        A file that begins anew is read from its start: with mode "w", or cut back to what a checkpoint knows of. The
        lines that still stand where they stood are not taken again.
        """
        assert self._path is not None
        if self._before(self._offset) != self._mark:
            self._offset, self._mark = 0, b""
            self._stood, self._read = self._read + self._stood[len(self._read) :], array("q")
        with self._path.open("rb") as file:
            file.seek(self._offset)
            return file.read(MAX_BYTES)

    def _before(self, offset: int) -> bytes:
        """The bytes that end at an offset: they tell whether the file is still the one that was read so far."""
        assert self._path is not None
        with self._path.open("rb") as file:
            begin = max(0, offset - MARK_BYTES)
            file.seek(begin)
            return file.read(offset - begin)

    def _taken(self, text: bytes, now_unix_s: float) -> list[str]:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return []  # a header, a torn line
        return self._lines.of(said, now_unix_s, at_once=False) if isinstance(said, dict) else []
