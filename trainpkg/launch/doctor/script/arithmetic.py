"""What a number in a script may be: an interval, from arithmetic over literals, Slurm's variables and RANDOM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TOKEN = re.compile(r"\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*)\}?|([-+*/%()]))")


@dataclass(frozen=True)
class Interval:
    """All whole numbers from `low` to `high`."""

    low: int
    high: int

    @property
    def exact(self) -> int | None:
        return self.low if self.low == self.high else None


DRAWN = {
    "RANDOM": Interval(0, 32_767),
    "SRANDOM": Interval(0, 2**32 - 1),
    "SLURM_JOB_ID": Interval(1, 2**26),
    "SLURM_JOBID": Interval(1, 2**26),
    "SLURM_ARRAY_JOB_ID": Interval(1, 2**26),
    "SLURM_ARRAY_TASK_ID": Interval(0, 4_000_000),
    "EPOCHSECONDS": Interval(1_700_000_000, 2**32),
    "UID": Interval(0, 2**31),
}


def interval(text: str, names: Mapping[str, int]) -> Interval | None:
    """The numbers that the text may become; None where that is not known."""
    text = text.strip()
    if match := re.fullmatch(r"\$\(\((.*)\)\)", text, re.DOTALL):
        return _Sum(match[1], names).value()
    if match := re.fullmatch(r"\$\(\s*shuf\b.*?-i\s*(\d+)-(\d+).*\)", text, re.DOTALL):
        return Interval(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"\$\(\s*expr\s+(.*)\)", text, re.DOTALL):
        tail = re.compile(r"\$\(\s*echo\s+(?:-n\s+)?\$\{?SLURM_JOB_?ID\}?\s*\|\s*tail\s+-c\s*(\d)\s*\)")
        sizes = [int(found[1]) for found in tail.finditer(match[1])]
        inside = tail.sub("TAIL", match[1]).replace("\\*", "*")
        return _Sum(inside, names, {"TAIL": Interval(0, 10 ** max(sizes, default=1) - 1)}).value()
    if match := re.fullmatch(r"\$\{SLURM_JOB_?ID:\s+-(\d)\}|\$\{SLURM_JOB_?ID: ?\(-(\d)\)\}", text):
        return Interval(0, 10 ** int(match[1] or match[2]) - 1)
    if "$(" in text:
        return None
    return _Sum(text, names).value()


class _Sum:
    """Recursive descent over + - * / % and brackets."""

    def __init__(self, text: str, names: Mapping[str, int], more: Mapping[str, Interval] | None = None) -> None:
        self.text, self.at = text, 0
        self.names = {name: Interval(value, value) for name, value in names.items()} | DRAWN | dict(more or {})

    def value(self) -> Interval | None:
        try:
            found = self._sum()
        except (ValueError, ZeroDivisionError):
            return None
        return found if not self.text[self.at :].strip() else None

    def _next(self, *signs: str) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None or match[3] not in signs:
            return ""
        self.at = match.end()
        return match[3]

    def _sum(self) -> Interval:
        left = self._product()
        while sign := self._next("+", "-"):
            right = self._product()
            if sign == "+":
                left = Interval(left.low + right.low, left.high + right.high)
            else:
                left = Interval(left.low - right.high, left.high - right.low)
        return left

    def _product(self) -> Interval:
        left = self._atom()
        while sign := self._next("*", "/", "%"):
            right = self._atom()
            if sign == "*":
                ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
                left = Interval(min(ends), max(ends))
            elif right.exact is None or right.low <= 0 or left.low < 0:
                raise ValueError
            elif sign == "/":
                left = Interval(left.low // right.low, left.high // right.low)
            else:
                left = left if left.high < right.low else Interval(0, right.low - 1)
        return left

    def _atom(self) -> Interval:
        if self._next("("):
            found = self._sum()
            if not self._next(")"):
                raise ValueError
            return found
        match = _TOKEN.match(self.text, self.at)
        if match is None or match[3]:
            raise ValueError
        self.at = match.end()
        if match[1]:
            return Interval(int(match[1]), int(match[1]))
        if match[2] not in self.names:
            raise ValueError
        return self.names[match[2]]
