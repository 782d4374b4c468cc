"""What a way of starting ranks is: the protocol that each of them keeps.

A starter only starts processes and tells how they ended. Who is which rank, who is told to stop and what an end means
is decided in `node` and above.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainpkg.launch.plan import LaunchPlan


@dataclass(frozen=True)
class Order:
    """One rank to start. `env` changes the node's environment: None removes a variable.

    `entry` is what a forked rank calls (`module:function`), `argv` what a program of its own is.
    """

    rank: int
    local_rank: int
    entry: str
    argv: list[str]
    env: dict[str, str | None]
    log: str
    listen: socket.socket | None = None


@dataclass(frozen=True)
class Orders:
    """All ranks of one node in one generation. `local_addr`: this node's own address towards the master.

    `env` is what a program of the whole node gets beyond the node's environment.
    """

    plan: LaunchPlan
    index: int
    local_addr: str
    folder: Path
    ranks: list[Order]
    env: dict[str, str | None]


@dataclass(frozen=True)
class Ended:
    """How the process of a rank ended: by `exit_code` or by `signal`. `orphaned`: because its launcher was gone."""

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    orphaned: bool = False


@dataclass(frozen=True)
class ProgramEnded:
    """How the program that a node started for all its ranks ended."""

    name: str
    pid: int
    exit_code: int | None
    signal: int | None
    log: Path


class StartFailed(Exception):
    """Ranks cannot be started in this way; the text says why, `details` has the traceback if there is one."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


@dataclass
class Calls:
    """What a starter calls back, in the event loop."""

    started: Callable[[int, int], None]  # rank, pid
    ended: Callable[[Ended], None]
    failed: Callable[[str, int | None], None]  # the starter itself is gone, and with it its ranks: why, which signal
    refused: Callable[[str], None]  # a rank that was started is not as the plan says: why
    program_ended: Callable[[ProgramEnded], None]


class Starter(Protocol):
    """Starts the ranks of one node."""

    own_imports: bool  # each rank has yet to import everything when it starts

    async def ready(self) -> str:
        """Wait until ranks can be started; returns a line for the node's log. Raises StartFailed."""

    def start(self, orders: Orders) -> None:
        """Start all ranks; `calls.started` and, at its end, `calls.ended` follow for each."""

    @property
    def helpers(self) -> list[int]:
        """Processes of the starter's own, which outlive a generation of ranks."""

    def stop(self) -> None:
        """End what is left of the generation beside its ranks; nothing more is told of it."""

    def close(self) -> None:
        """End the helpers, and with them whatever ranks are left."""
