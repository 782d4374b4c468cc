"""What node 0 says to typed nodes that call it: the spec, or why they do not fit; and who has not called yet.

Under Slurm the launcher starts the nodes and knows their hosts; here nobody knows a host before its node has called.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainpkg.launch import wire
from trainpkg.launch.facts import MAX_NAMED, NodeFacts, RollCallError, name_nodes
from trainpkg.launch.head.meeting.member import Member
from trainpkg.launch.spec import TOKEN, Spec
from trainpkg.launch.typed.agreement import misfit
from trainpkg.launch.typed.command import Typed
from trainpkg.launch.wire import Message

FACTS_TIMEOUT_S = 60.0  # between the spec and a node's answer: it looks for the run directory meanwhile
FIRST_WORD_S = 5.0
LAST_PAUSE_S = 60.0
TURN_AWAY_S = 8.0


@dataclass
class Endpoint:
    """Where typed nodes meet: what was typed on node 0, the port that it holds, the secret, a line per other node."""

    typed: Typed
    address: str
    listener: socket.socket
    secret: str
    lines: list[str]
    called: set[int] = field(default_factory=set)  # nodes that have heard, or will hear, how it ends
    last_words: str = ""


def typed_fields(endpoint: Endpoint) -> dict[str, Any]:
    """What the spec has from the command of node 0. No shell of ours runs before that of a person's."""
    typed = endpoint.typed
    fields: dict[str, Any] = {"dist_addr": endpoint.address, "typed_local": typed.local}
    fields |= {"prologue": [], "wrapper": None, "python": None, "srun_args": ""}
    return fields if typed.gpus_per_node is None else fields | {"gpus_per_node": list(typed.gpus_per_node)}


class Reception:
    """Answers callers of an attempt whose files are written. A token in its directory tells who shares that."""

    def __init__(self, endpoint: Endpoint, spec: Spec, say: Callable[[str], None]) -> None:
        self.endpoint, self.spec, self.say = endpoint, spec, say
        token, config = secrets.token_hex(16), Path(spec.config_path).read_text()
        Path(spec.launch_dir, TOKEN).write_text(token)
        self.welcome: Message = {"type": "spec", "spec": dataclasses.asdict(spec), "config": config, "token": token}
        self.complete = False
        self._guests: dict[int, str] = {}
        self._next_word_s = time.monotonic() + FIRST_WORD_S
        self._pause_s = FIRST_WORD_S

    async def receive(
        self, asked: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Message | None:
        """Give a caller the spec and return its facts. Raises wire.Refused, which the caller has heard too."""
        who = f"{asked.get('host')} (process {asked.get('pid')})"
        why = misfit(self.endpoint.typed, socket.gethostname(), asked)
        index = int(asked.get("node_rank") or 0)
        if not why and index in self._guests:
            why = (
                f"two nodes say that they are node {index}: {self._guests[index]} and {who}. Each machine needs a "
                "--node-rank of its own"
            )
        if self.complete:
            why = f"{who} comes too late: all {self.spec.num_nodes} nodes are there. {why}"
            self.say(why)
        if why:
            writer.write(wire.encode({"type": "bye", "status": 1, "sentence": why}))
            await writer.drain()
            raise wire.Refused(why)
        self.endpoint.called.add(index)
        self._guests[index] = who
        writer.write(wire.encode(self.welcome))
        try:
            answer = await asyncio.wait_for(wire.receive(reader), FACTS_TIMEOUT_S)
        except TimeoutError as error:
            raise wire.Refused(f"node {index}, {who}, has been silent for {FACTS_TIMEOUT_S:g} s") from error
        if answer is None:  # it may be typed again
            del self._guests[index]
            self.say(f"node {index}, {who}, has gone before it answered")
        elif answer.get("type") == "failed":
            raise wire.Refused(f"node {index}, {who}: {answer.get('why')}")
        return answer

    def wait(self, present: Mapping[int, Member], now_s: float, deadline_s: float, ended: str) -> None:
        """Remind people of who is missing. Raises RollCallError when it is too late."""
        self.remind(present, now_s)
        if now_s >= deadline_s and not ended and self.missing(present):
            answered = name_nodes([member.facts for member in present.values()]) or "none"
            raise RollCallError(self.too_late(present, answered))

    def remind(self, present: Collection[int], now_s: float) -> None:
        """Say who is missing, now and then, more and more seldom."""
        if now_s < self._next_word_s or not self.missing(present):
            return
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        self._next_word_s = now_s + self._pause_s
        self.say(f"waiting for {self._named(present)} of {self.spec.num_nodes}. {self._to_do(present)}")

    def too_late(self, present: Mapping[int, Any], answered: str) -> str:
        """The sentence at the deadline."""
        return (
            f"{self._named(present)} did not call {self.endpoint.typed.host} port {self.endpoint.typed.port} within "
            f"{self.spec.timeouts.start_s:g} s (--start-timeout, launch.start_timeout_s); answered: {answered}. "
            f"{self._to_do(present)}"
        )

    def missing(self, present: Collection[int]) -> list[int]:
        """Indices of nodes that have not called."""
        return [index for index in range(self.spec.num_nodes) if index not in present]

    def _to_do(self, present: Collection[int]) -> str:
        """What to type for the first node that is missing; that of node 0 is this very command's child."""
        others = [index for index in self.missing(present) if index > 0]
        if not others:
            return f"It starts on this machine: see node-0.log in {self.spec.generation_dir(0)}"
        return f"Is it typed on its machine, and what does it say? {self.endpoint.lines[others[0]]}"

    def _named(self, present: Collection[int]) -> str:
        missing = self.missing(present)
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        return ", ".join(f"node {index}" for index in missing[:MAX_NAMED]) + more


async def turn_away(endpoint: Endpoint, status: int, sentence: str) -> None:
    """Tell the verdict to those who have not heard of it and call within a few seconds."""
    wanted = set(range(1, endpoint.typed.num_nodes))
    all_called = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(wire.Refused, OSError, TimeoutError):
            await wire.admit(reader, writer, endpoint.secret, "typed nodes")
            asked = await asyncio.wait_for(wire.receive(reader), wire.HANDSHAKE_TIMEOUT_S)
            writer.write(wire.encode({"type": "bye", "status": status, "sentence": sentence}))
            await writer.drain()
            endpoint.called.add(int((asked or {}).get("node_rank") or 0))
        writer.close()
        if endpoint.called >= wanted:
            all_called.set()

    if endpoint.called >= wanted:
        return
    server = await asyncio.start_server(serve, sock=endpoint.listener, limit=wire.MAX_LINE)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(all_called.wait(), TURN_AWAY_S)
    server.close()


def hosts_of(spec: Spec, nodes: list[NodeFacts]) -> list[str]:
    """The hosts of the nodes that have called; one that several have as their name is told by its address."""
    names = [node.host for node in nodes]
    return [
        node.addresses[0] if names.count(node.host) > 1 and node.addresses else node.host
        for node in nodes
    ] if not spec.simulated else names  # fmt: skip
