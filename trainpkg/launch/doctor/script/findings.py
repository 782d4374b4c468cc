"""What a rule finds, and a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainpkg.launch.doctor.rows import BAD
from trainpkg.launch.doctor.script.reading import Script


@dataclass(frozen=True)
class Found:
    """A line, why it goes wrong, and the fix in one sentence each. bad: known to fail; warn: fails on some clusters."""

    line: int
    why: str
    fix: str
    verdict: str = BAD


@dataclass(frozen=True)
class Rule:
    """`text` says in a few words what the rule is about."""

    id: str
    look: Callable[[Script], Iterable[Found]]
    text: str
