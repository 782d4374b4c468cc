"""The JSON lines that a program of the user's own writes somewhere, brought into the run's metrics.jsonl as they come.

`entry.metrics` names the file. What stood in it before this generation began was another one's. Nothing here ends a
run: a file that never appears leaves the tables without records.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from trainpkg.launch.spec import Spec
from trainpkg.metric_lines import Lines, append

MAX_BYTES = 16 * 1024 * 1024  # at a look, so that the launcher goes on hearing its nodes
MARK_BYTES = 256


class Collected:
    """Follows the file through one generation. Without `spec.metrics` it does nothing."""

    def __init__(self, spec: Spec, generation: int) -> None:
        self._target = Path(spec.run_dir) / "metrics.jsonl"
        self._path = Path(spec.metrics) if spec.metrics and Path(spec.metrics) != self._target else None
        self._lines = Lines(spec.attempt, generation, spec.began_unix_s)
        self._offset, self._mark = 0, b""
        if self._path is not None and self._path.is_file():
            self._offset = self._path.stat().st_size
            self._mark = self._before(self._offset)

    def look(self, at_the_end: bool = False) -> None:
        """Take what is new: whole lines, and at the end also a last one without its newline."""
        if self._path is None:
            return
        try:
            new = self._new()
        except OSError:
            return
        whole = len(new) if at_the_end else new.rfind(b"\n") + 1
        if not whole:
            return
        self._offset += whole
        self._mark = (self._mark + new[:whole])[-MARK_BYTES:]
        now = time.time()
        append(self._target, [line for text in new[:whole].splitlines() for line in self._taken(text, now)])

    def _new(self) -> bytes:
        """What lies behind that which was read. A file that begins anew, as with mode "w", is read from its start."""
        assert self._path is not None
        if self._before(self._offset) != self._mark:
            self._offset, self._mark = 0, b""
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
