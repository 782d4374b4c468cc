"""What people see of a launch: lines that stay, and one progress line that is rewritten on a terminal."""

from __future__ import annotations

import sys
import time

FILE_EVERY_S = 10.0
TERMINAL_EVERY_S = 0.2


class PlainScreen:
    """Lines in a file; the step now and then."""

    def __init__(self) -> None:
        self._told_s = float("-inf")

    def say(self, text: str) -> None:
        print(text, flush=True)

    def progress(self, step: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._told_s >= FILE_EVERY_S or step == total:
            self._told_s = now if step != total else float("inf")
            print(f"step {step}{f' of {total}' if total else ''}", flush=True)


class TerminalScreen:
    """A progress line at the bottom, above which lines stay."""

    def __init__(self) -> None:
        self._told_s = float("-inf")
        self._open = False

    def say(self, text: str) -> None:
        print(f"\r\033[K{text}" if self._open else text, flush=True)
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
        print(f"\r\033[Kstep {step}{bar}", end="", flush=True)


def make_screen() -> PlainScreen | TerminalScreen:
    """The screen that fits standard output."""
    return TerminalScreen() if sys.stdout.isatty() else PlainScreen()
