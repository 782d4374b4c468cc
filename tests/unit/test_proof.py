"""The proof of addresses with played nodes: what is asked, what is chosen, what is said when the network is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.test_rollcall import make_facts
from trainpkg.launch.facts import NodeFacts, RollCallError
from trainpkg.launch.head.meeting import proof
from trainpkg.launch.head.meeting.addresses import agree_on_name, contradicting_addresses
from trainpkg.launch.head.meeting.proof import Proof, Proven
from trainpkg.launch.wire import Message

failure = pytest.mark.failure
Connects = Callable[[int, str, int], str | None]


@dataclass
class Played:
    """Nodes 10.0.0.1, 10.0.0.2, ... that answer as `connects(node, address, port)` says: None, or why not."""

    nodes: Sequence[NodeFacts]
    connects: Connects = lambda node, address, port: None
    resolved: dict[int, list[str] | str] = field(default_factory=dict)
    own: dict[int, tuple[str, str]] = field(default_factory=dict)
    asked: list[tuple[int, Message]] = field(default_factory=list)

    def tell(self, index: int, message: Message) -> None:
        self.asked.append((index, message))

    async def collect(self, kind: str, generation: int, indices: Sequence[int]) -> dict[int, Message]:
        latest = dict(self.asked)
        return {index: self.answer(index, latest[index]) for index in indices}

    def answer(self, index: int, message: Message) -> Message:
        if message["type"] == "open":
            found = self.resolved.get(index, [])
            error = found if isinstance(found, str) else ""
            return {"port": 6000, "data_port": 40_000 + index, "resolved": found, "resolve_error": error}
        if message["type"] == "choose":
            address, interface = self.own.get(index, (f"10.0.0.{index + 1}", "eth0"))
            return {"address": address, "interface": interface}
        return {"errors": {key: self.connects(index, a, port) for key, a, port in message["targets"]}}


def make_nodes(number: int, addresses: Sequence[str] = ("10.0.0.1",)) -> list[NodeFacts]:
    """`addresses` are the first node's."""
    others = [make_facts(index, addresses=[f"10.0.0.{index + 1}"]) for index in range(1, number)]
    return [make_facts(0, addresses=list(addresses)), *others]


def prove(played: Played, **more: Any) -> Proven:
    return asyncio.run(Proof(played, played.nodes, 0, **more).run())


def test_the_first_address_that_all_reach_is_the_masters() -> None:
    def connects(node: int, address: str, port: int) -> str | None:
        return "another program listens there" if address == "172.17.0.1" else None

    played = Played(make_nodes(3, addresses=["172.17.0.1", "10.0.0.1"]), connects)
    proven = prove(played)
    assert (proven.address, proven.port) == ("10.0.0.1", 6000)
    assert proven.own == [("10.0.0.1", "eth0"), ("10.0.0.2", "eth0"), ("10.0.0.3", "eth0")]
    assert "10.0.0.1 port 6000, reached by all 3 nodes; ranks are at n1 10.0.0.1 (eth0)" in proven.describe(
        played.nodes
    )


def test_the_likeliest_address_is_tried_alone_since_dead_ones_cost_seconds() -> None:
    played = Played(make_nodes(2, addresses=["10.0.0.1", "10.9.0.1", "172.17.0.1"]))
    prove(played, check_pairs=False)
    probes = [message["targets"] for _, message in played.asked if message["type"] == "probe"]
    assert probes == [[("10.0.0.1", "10.0.0.1", 6000)]]


@failure("F018")
def test_no_address_reached_names_the_node_and_each_reason() -> None:
    reasons = {"10.0.0.1": "No route to host", "10.1.0.1": "no answer"}
    nodes = make_nodes(3, addresses=list(reasons))
    with pytest.raises(RollCallError) as caught:
        prove(Played(nodes, lambda node, address, port: reasons.get(address)))
    for word in ("node 1 (n2) reaches no address of node 0 (n1) at port 6000", "10.0.0.1: No route", "10.1.0.1: no",
                 "nor do node 2 (n3)", "`nc -l 6000` on n1, then `nc -v 10.0.0.1 6000` on n2"):  # fmt: skip
        assert word in str(caught.value)


def test_addresses_that_only_some_reach_are_listed() -> None:
    reach = {1: "10.0.0.1", 2: "10.1.0.1"}
    nodes = make_nodes(3, addresses=list(reach.values()))
    with pytest.raises(RollCallError) as caught:
        prove(Played(nodes, lambda node, address, port: None if reach[node] == address else "no answer"))
    assert "no address of node 0 (n1) is reached by all nodes" in str(caught.value)
    assert "node 1 (n2) reaches 10.0.0.1; node 2 (n3) reaches 10.1.0.1" in str(caught.value)


@failure("F028")
@pytest.mark.parametrize(("caller", "target"), [(0, 2), (2, 0), (1, 2), (2, 3), (3, 0)])
def test_node_0_and_each_neighbour_are_tried_both_ways_on_ports_of_the_data(caller: int, target: int) -> None:
    def connects(node: int, address: str, port: int) -> str | None:
        return "no answer" if (node, address, port) == (caller, f"10.0.0.{target + 1}", 40_000 + target) else None

    with pytest.raises(RollCallError) as caught:
        prove(Played(make_nodes(4), connects))
    text = str(caught.value)
    assert f"node {caller} (n{caller + 1}) does not reach node {target} (n{target + 1}) at 10.0.0.{target + 1}" in text
    assert f"`nc -l {40_000 + target}` on n{target + 1}" in text and f"on n{caller + 1}" in text


@failure("F028")
def test_every_node_is_called_and_the_number_of_calls_grows_with_the_nodes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof, "TARGETS_PER_MESSAGE", 7)
    called: list[tuple[int, int]] = []

    def connects(node: int, address: str, port: int) -> str | None:
        called.append((node, port))
        return None

    number = 40
    played = Played(make_nodes(number), connects)
    prove(played)
    data = [(node, port - 40_000) for node, port in called if port >= 40_000]
    assert {target for _, target in data} == set(range(number))
    assert {node for node, _ in data} == set(range(number))
    assert len(data) == len(set(data)) < 3 * number
    assert max(len(message["targets"]) for _, message in played.asked if message["type"] == "ring") == 7


@failure("F022")
@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({1: ("127.0.0.1", "lo")}, "the ranks of node 1 (n2) would tell the others 127.0.0.1 (lo), where nobody"),
        ({1: ("", "")}, "would tell the others no address (no interface)"),
        ({0: ("172.17.0.1", "docker0"), 1: ("172.17.0.1", "docker0")},
         "node 0 (n1) and node 1 (n2) both have 172.17.0.1 (docker0)"),
    ],
)  # fmt: skip
def test_an_address_that_leads_nowhere_is_named_before_the_ranks_start(
    own: dict[int, tuple[str, str]], words: str
) -> None:
    with pytest.raises(RollCallError) as caught:
        prove(Played(make_nodes(2), own=own))
    assert words in str(caught.value)


def test_several_nodes_on_one_host_may_share_its_address() -> None:
    nodes = [make_facts(index, host="h", addresses=["10.0.0.1"]) for index in range(2)]
    assert contradicting_addresses(nodes, [("10.0.0.1", "eth0")] * 2) == ""


@failure("F001")
@failure("F007")
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("10.0.0.9", "the address 10.0.0.9 is not on the first node n1, which has 10.0.0.1"),
        ("127.0.0.1", "every one of the 2 nodes would wait for itself"),
        ("::1", "every one of the 2 nodes would wait for itself"),
    ],
)
def test_an_address_that_is_not_the_first_nodes_is_refused(wanted: str, words: str) -> None:
    with pytest.raises(RollCallError) as caught:
        prove(Played(make_nodes(2)), master_addr=wanted)
    assert words in str(caught.value)


@failure("F016")
def test_an_address_that_is_given_is_proven_like_one_that_is_chosen() -> None:
    """Which node the first is, is a matter of its index, not of comparing names and addresses."""
    nodes = make_nodes(2, addresses=["10.0.0.1", "10.1.0.1"])
    assert prove(Played(nodes), master_addr="10.1.0.1").address == "10.1.0.1"
    with pytest.raises(RollCallError, match=r"node 1 \(n2\) reaches no address of node 0"):
        prove(Played(nodes, lambda *_: "no answer"), master_addr="10.1.0.1")


@failure("F006")
def test_a_name_is_resolved_by_every_node_and_ranks_get_an_address() -> None:
    played = Played(make_nodes(2), resolved={0: ["10.0.0.1"], 1: ["10.0.0.1"]})
    assert prove(played, master_addr="n1.cluster.example").address == "10.0.0.1"
    assert all(message["name"] == "n1.cluster.example" for _, message in played.asked if message["type"] == "open")


NODES = make_nodes(3, addresses=["10.0.0.1", "10.1.0.1"])


@failure("F004")
@failure("F009")
@pytest.mark.parametrize(
    ("answers", "expected", "warned"),
    [
        ({0: ["10.0.0.1"], 1: ["10.0.0.1"], 2: ["10.0.0.1"]}, ["10.0.0.1"], ""),
        ({0: ["10.0.0.1", "10.1.0.1"], 1: ["10.1.0.1"], 2: ["10.1.0.1", "10.0.0.1"]}, ["10.1.0.1"], ""),
        ({0: ["127.0.1.1"], 1: ["10.0.0.1"], 2: ["10.0.0.1"]}, ["10.0.0.1"], "leads node 0 (n1) to itself; 10.0.0.1"),
        ({0: ["127.0.1.1"], 1: ["127.0.1.1"], 2: ["127.0.1.1"]}, ["10.0.0.1", "10.1.0.1"],
         "leads every node to itself"),
    ],
)  # fmt: skip
def test_what_a_name_means_on_all_nodes(answers: dict[int, list[str] | str], expected: list[str], warned: str) -> None:
    found, warning = agree_on_name("first", answers, NODES)
    assert found == expected
    assert bool(warning) == bool(warned) and warned in warning


@failure("F007")
@failure("F009")
@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({0: ["10.0.0.1"], 1: ["10.9.0.9"], 2: ["10.0.0.1"]},
         ["do not mean the same machine", "\n  10.9.0.9 <- node 1 (n2)\n  10.0.0.1 <- node 0 (n1), node 2 (n3)"]),
        ({0: ["10.0.0.1"], 1: "Name or service not known", 2: ["10.0.0.1"]},
         ["cannot be resolved on all nodes", "  Name or service not known <- node 1 (n2)"]),
        ({0: ["10.9.0.9"], 1: ["10.9.0.9"], 2: ["10.9.0.9"]},
         ["launch.master_addr = first: the address 10.9.0.9 is not on the first node n1, which has 10.0"]),
    ],
)  # fmt: skip
def test_a_name_on_which_nodes_disagree_is_shown_as_a_table(
    answers: dict[int, list[str] | str], words: list[str]
) -> None:
    with pytest.raises(RollCallError) as caught:
        agree_on_name("first", answers, NODES)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_restart_proves_the_new_port_and_no_more() -> None:
    played = Played(make_nodes(2))
    prove(played, check_pairs=False)
    assert {message["type"] for _, message in played.asked} == {"open", "probe"}


def test_a_restart_tries_the_address_of_before_first() -> None:
    played = Played(make_nodes(2, addresses=["10.0.0.1", "10.1.0.1"]))
    assert prove(played, check_pairs=False, before="10.1.0.1").address == "10.1.0.1"


def test_a_node_that_cannot_open_its_port_says_why() -> None:
    class Full(Played):
        def answer(self, index: int, message: Message) -> Message:
            return {"error": "no free port"} if index == 1 else super().answer(index, message)

    with pytest.raises(RollCallError, match=r"node 1 \(n2\) cannot open a port for the ranks: no free port"):
        prove(Full(make_nodes(2)))
