"""A node at the coordinator's end of its connection, and what it said."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from trainpkg.launch import wire
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.wire import Message


@dataclass
class Member:
    """One node that answered, and its connection. `heard` is on the coordinator's monotonic clock."""

    facts: NodeFacts
    writer: asyncio.StreamWriter
    peer: str
    heard: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"node {self.facts.index} ({self.facts.host})"

    def tell(self, message: Message) -> None:
        """Queue a message; a connection that is gone is noticed by its reader."""
        if not self.writer.is_closing():
            self.writer.write(wire.encode(message))


@dataclass
class Incoming:
    """What a node said; message None: its connection ended."""

    member: Member
    message: Message | None
