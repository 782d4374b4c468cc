"""One line of the doctor's table, and the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

OK, WARN, BAD = "ok", "warn", "bad"


@dataclass(frozen=True)
class Row:
    """What a check found. `fix` says in one sentence what to do about a row that is not ok.

    `same`: what must be equal on all nodes, where the check has such a thing; `differing` is the verdict if it is not.
    """

    check: str
    found: str
    verdict: str = OK
    fix: str = ""
    same: str | None = None
    differing: str = WARN


def worst(rows: Iterable[Row]) -> str:
    """The verdict of a table."""
    return max((row.verdict for row in rows), key=(OK, WARN, BAD).index, default=OK)


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]


def from_json(tree: Iterable[dict[str, Any]]) -> list[Row]:
    known = {field.name for field in dataclasses.fields(Row)}
    return [Row(**{name: value for name, value in row.items() if name in known}) for row in tree]


def table(rows: Sequence[Row]) -> str:
    """The rows as text; a fix stands below its row."""
    width = max((len(row.check) for row in rows), default=0)
    lines = []
    for row in rows:
        lines.append(f"{row.verdict:<4}  {row.check:<{width}}  {row.found}")
        if row.fix and row.verdict != OK:
            lines.append(f"{'':<4}  {'':<{width}}  fix: {row.fix}")
    return "\n".join(lines)


def size(num_bytes: float) -> str:
    """`1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"
