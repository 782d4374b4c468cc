"""What `launch` knows of one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RankState:
    """What is known of one rank. `ended` is its node's last message about it."""

    node: int
    started: bool = False  # its process is there
    hello_s: float | None = None
    joined: bool = False
    step: int | None = None
    done: str | None = None
    phase: str = ""  # what it does besides steps: evaluating, saving, ...
    end_s: float | None = None  # when it came to the end of the run
    ended_s: float | None = None
    spoke_s: float | None = None  # when it raised
    ended: dict[str, Any] = field(default_factory=dict)
