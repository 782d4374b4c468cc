"""What people see of a launch: lines that stay, and one progress line that is rewritten on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

FILE_EVERY_S = 10.0
TERMINAL_EVERY_S = 0.2
MAX_SAID = 8000  # characters: on the wire they are at most 48 KiB


def show(text: str, end: str = "\n") -> None:
    """Print. A reader that is gone (`tee` dies with a cancelled job) must not end what is being said."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Screen(Protocol):
    """Where lines for people go."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def progress(self, step: int, total: int | None) -> None:
        """The step that the ranks are at; shown now and then."""


class PlainScreen:
    """Lines in a file; the step now and then."""

    def __init__(self) -> None:
        self._told_s = float("-inf")

    def say(self, text: str) -> None:
        show(text)

    def progress(self, step: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._told_s >= FILE_EVERY_S or step == total:
            self._told_s = now if step != total else float("inf")
            show(f"step {step}{f' of {total}' if total else ''}")


class TerminalScreen:
    """A progress line at the bottom, above which lines stay."""

    def __init__(self) -> None:
        self._told_s = float("-inf")
        self._open = False

    def say(self, text: str) -> None:
        show(f"\r\033[K{text}" if self._open else text)
        self._open = False

    def progress(self, step: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._told_s < TERMINAL_EVERY_S and step != total:
            return
        self._told_s, self._open = now, True
        bar = ""
        if total:
            done = min(30, 30 * step // total)
            bar = f" [{'#' * done}{'.' * (30 - done)}] of {total}"
        show(f"\r\033[Kstep {step}{bar}", end="")


class SharedScreen:
    """A screen whose lines people at other machines see as well, through `tell`."""

    def __init__(self, own: Screen, tell: Callable[[dict[str, Any]], None]) -> None:
        self._own, self._tell = own, tell

    def say(self, text: str) -> None:
        self._own.say(text)
        self._tell({"type": "said", "text": text[-MAX_SAID:]})

    def progress(self, step: int, total: int | None) -> None:
        self._own.progress(step, total)


class Recorded:
    """A screen whose lines also stay in a file of the attempt: Snakemake empties its own log when a job starts anew."""

    def __init__(self, screen: Screen, path: Path) -> None:
        self._screen, self._path = screen, path

    def say(self, text: str) -> None:
        self._screen.say(text)
        with contextlib.suppress(OSError), self._path.open("a") as file:  # a full disk ends no run
            file.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def progress(self, step: int, total: int | None) -> None:
        self._screen.progress(step, total)


def make_screen() -> PlainScreen | TerminalScreen:
    """The screen that fits standard output."""
    return TerminalScreen() if sys.stdout.isatty() else PlainScreen()
