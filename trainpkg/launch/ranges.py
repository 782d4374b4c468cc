"""Blocks of ranks that several places claim: which overlap, which leave a gap, and what was probably meant. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainpkg.errors import UserError


@dataclass(frozen=True)
class RankRange:
    """Ranks `first` to `first + count - 1`, claimed by `who` (`node 1 (host)`)."""

    who: str
    first: int
    count: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def __str__(self) -> str:
        ranks = f"ranks {self.first}-{self.last}" if self.count > 1 else f"rank {self.first}"
        return f"{ranks} on {self.who}"


def check_ranges(ranges: Sequence[RankRange], world_size: int | None = None) -> None:
    """Nothing where the ranges cover 0 to `world_size - 1` once each (None: any size, and no gap is seen at the end).

    Raises:
        UserError: the first overlap or gap, who claims what, and the node index given as a rank where it looks so.
    """
    ordered = sorted(ranges, key=lambda one: (one.first, one.who))
    expected, before = 0, None
    for one in ordered:
        if one.first < expected:
            assert before is not None
            twice = f"{one.first}-{min(one.last, before.last)}" if one.last > one.first else f"{one.first}"
            raise UserError(f"rank(s) {twice} would run twice: {before}, {one}{_hint(ordered)}")
        if one.first > expected:
            raise UserError(f"rank(s) {expected}-{one.first - 1} would run nowhere: {_list(ordered)}{_hint(ordered)}")
        expected, before = one.last + 1, one
    if world_size is not None and expected < world_size:
        raise UserError(
            f"rank(s) {expected}-{world_size - 1} of {world_size} would run nowhere: {_list(ordered)}{_hint(ordered)}"
        )
    if world_size is not None and expected > world_size:
        raise UserError(f"{expected} ranks are claimed where the world size is {world_size}: {_list(ordered)}")


def _list(ranges: Sequence[RankRange], most: int = 8) -> str:
    more = f" and {len(ranges) - most} more" if len(ranges) > most else ""
    return "; ".join(str(one) for one in ranges[:most]) + more


def _hint(ordered: Sequence[RankRange]) -> str:
    """0, 1, 2, 3 where 0, 8, 16, 24 was meant."""
    firsts = [one.first for one in ordered]
    if len(ordered) < 2 or firsts != list(range(len(ordered))) or max(one.count for one in ordered) == 1:
        return ""
    meant, total = [], 0
    for one in ordered:
        meant.append(total)
        total += one.count
    return f". {_few(firsts)} look like node indices given as ranks; the first ranks of these nodes are {_few(meant)}"


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
