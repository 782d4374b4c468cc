"""Which address and port all ranks meet at, proven by every node, and that the nodes reach each other both ways.

Asks the nodes (node/prove.py) and judges their answers; the sentences name node, address, what came back, and the check
by hand. Raises RollCallError. Nothing here is specific to one way of starting ranks.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainpkg.launch import ports
from trainpkg.launch.facts import MAX_NAMED, NodeFacts, RollCallError, name_nodes
from trainpkg.launch.head.meeting.addresses import agree_on_name, by_hand, contradicting_addresses, require_own
from trainpkg.launch.network import validate_address
from trainpkg.launch.wire import Message

TARGETS_PER_MESSAGE = 256  # a line is bounded, and so are a node's open files


class Nodes(Protocol):
    """How the nodes are asked."""

    def tell(self, index: int, message: Message) -> None:
        """Send one node a message."""

    async def collect(self, kind: str, generation: int, indices: Sequence[int]) -> dict[int, Message]:
        """One message of that kind from each of these nodes; RollCallError when one is silent or gone."""


@dataclass(frozen=True)
class Proven:
    """Where the ranks meet. `own`: per node, the address and the interface that its ranks tell the others."""

    address: str
    port: int
    own: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def describe(self, nodes: Sequence[NodeFacts]) -> str:
        """One line for people; empty for one node."""
        if len(nodes) == 1:
            return ""
        told = [f"{node.host} {address} ({interface})" for node, (address, interface) in zip(nodes, self.own)]  # noqa: B905  # `own` is empty after a restart
        more = f" and {len(told) - MAX_NAMED} more" if len(told) > MAX_NAMED else ""
        own = f"; ranks are at {', '.join(told[:MAX_NAMED])}{more}" if told else ""
        return f"{self.address} port {self.port}, reached by all {len(nodes)} nodes{own}"


@dataclass
class Proof:
    """One proof, for one generation. `master_addr`: what the user wants; `check_pairs`: also node to node.

    `before`: the address that was chosen last, which is tried first.
    """

    talk: Nodes
    nodes: Sequence[NodeFacts]
    generation: int
    master_addr: str | None = None
    check_pairs: bool = True
    before: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    warnings: list[str] = field(default_factory=list)

    async def run(self) -> Proven:
        every = range(len(self.nodes))
        name = self.master_addr if self.master_addr and not _is_address(self.master_addr) else None
        opened = await self._ask_all("open", "opened", {"token": self.token, "data": self.check_pairs, "name": name})
        for index in every:
            if error := opened[index].get("error"):
                raise RollCallError(f"{self._name(index)} cannot open a port for the ranks: {error}")
        port = int(opened[0]["port"])
        candidates = sorted(self._candidates(name, opened), key=lambda address: address != self.before)
        address = await self._choose(candidates, port)
        if not self.check_pairs:
            return Proven(address, port, [], self.warnings)
        chosen = await self._ask_all("choose", "chosen", {"address": address})
        own = [(str(chosen[index]["address"]), str(chosen[index]["interface"])) for index in every]
        if wrong := contradicting_addresses(self.nodes, own):
            raise RollCallError(wrong)
        await self._check_pairs(own, [int(opened[index]["data_port"]) for index in every])
        return Proven(address, port, own, self.warnings)

    def _name(self, index: int) -> str:
        return f"node {index} ({self.nodes[index].host})"

    async def _ask_all(self, kind: str, answer: str, message: Message) -> dict[int, Message]:
        everyone = range(len(self.nodes))
        for index in everyone:
            self.talk.tell(index, message | {"type": kind, "generation": self.generation})
        return await self.talk.collect(answer, self.generation, everyone)

    def _candidates(self, name: str | None, opened: Mapping[int, Message]) -> list[str]:
        """Addresses of node 0 to be tried, the likeliest first."""
        first = self.nodes[0]
        if self.master_addr is None:
            return first.addresses or ["127.0.0.1"]
        if name is None:
            require_own(self.master_addr, "", first, len(self.nodes))
            return [self.master_addr]
        answers = {
            index: f"{message['resolve_error']}" if message.get("resolve_error") else list(message["resolved"])
            for index, message in opened.items()
        }
        found, warning = agree_on_name(name, answers, self.nodes)
        self.warnings += [warning] if warning else []
        return found

    async def _try(self, kind: str, targets: Mapping[int, list[tuple[str, str, int]]]) -> dict[int, dict[str, str]]:
        """Have nodes try (key, address, port); per node, why not, by key."""
        failed: dict[int, dict[str, str]] = {index: {} for index in targets}
        rest = dict(targets)
        while rest:
            for index, some in rest.items():
                message = {"type": kind, "generation": self.generation, "token": self.token}
                self.talk.tell(index, message | {"targets": some[:TARGETS_PER_MESSAGE]})
            for index, answer in (await self.talk.collect(f"{kind}_done", self.generation, list(rest))).items():
                failed[index] |= {key: why for key, why in answer["errors"].items() if why is not None}
            rest = {i: some[TARGETS_PER_MESSAGE:] for i, some in rest.items() if len(some) > TARGETS_PER_MESSAGE}
        return failed

    async def _choose(self, candidates: list[str], port: int) -> str:
        """The first address that all nodes reach. The likeliest is tried alone: dead ones cost seconds."""
        others = range(1, len(self.nodes))
        errors: dict[int, dict[str, str]] = {index: {} for index in others}
        for some in (candidates[:1], candidates[1:]):
            if not some:
                continue
            found = await self._try("probe", {index: [(a, a, port) for a in some] for index in others})
            for index, failed in found.items():
                errors[index] |= failed
            if reached := [a for a in some if not any(a in failed for failed in found.values())]:
                return reached[0]
        raise RollCallError(self._unreached(errors, candidates, port))

    def _unreached(self, errors: Mapping[int, Mapping[str, str]], candidates: list[str], port: int) -> str:
        first = self._name(0)
        cut_off = [index for index, failed in errors.items() if all(a in failed for a in candidates)]
        if not cut_off:
            reach = [
                f"{self._name(index)} reaches {', '.join(a for a in candidates if a not in failed) or 'none'}"
                for index, failed in list(errors.items())[:MAX_NAMED]
            ]
            return f"no address of {first} is reached by all nodes; tried {', '.join(candidates)}: {'; '.join(reach)}"
        told = "; ".join(f"{a}: {errors[cut_off[0]][a]}" for a in candidates)
        check = by_hand(self.nodes[0], self.nodes[cut_off[0]], candidates[0], port)
        more = f"; nor do {name_nodes([self.nodes[i] for i in cut_off[1:]])}" if cut_off[1:] else ""
        return (
            f"{self._name(cut_off[0])} reaches no address of {first} at port {port} ({told}){more}. {first} holds that "
            f"port open, so it is the network between the two. {check} Where the site leaves certain ports open "
            "between nodes, set launch.port to that range"
        )

    async def _check_pairs(self, own: Sequence[tuple[str, str]], data_ports: Sequence[int]) -> None:
        """Both ways with node 0, and around the ring: each node is reached, and reaches, on a port of the data."""
        number = len(self.nodes)
        pairs = {0: list(range(1, number))}
        pairs |= {index: sorted({0, (index + 1) % number} - {index}) for index in range(1, number)}
        targets = {i: [(str(j), own[j][0], data_ports[j]) for j in some] for i, some in pairs.items() if some}
        failed = await self._try("ring", targets)
        broken = [(i, int(j), why) for i, errors in failed.items() for j, why in errors.items()]
        if not broken:
            return
        i, j, why = broken[0]
        low, high = ports.ephemeral_range()
        more = f" ({len(broken) - 1} more pairs fail)" if len(broken) > 1 else ""
        check = by_hand(self.nodes[j], self.nodes[i], own[j][0], data_ports[j])
        raise RollCallError(
            f"{self._name(i)} does not reach {self._name(j)} at {own[j][0]} port {data_ports[j]}: {why}{more}. Ranks "
            f"exchange data on ports {low}-{high}, which the kernel picks; {self._name(j)} holds this one open and "
            f"answers the roll call, so it is the network between the two. {check} Let the site open these ports "
            "between the nodes of a job, or take another network with launch.master_addr"
        )


def _is_address(text: str) -> bool:
    return ":" in validate_address(text, "launch.master_addr") or text.replace(".", "").isdigit()
