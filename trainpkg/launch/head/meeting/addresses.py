"""Judgements on addresses of nodes: whose they are, what a name means on each node, what ranks would tell the others.

Pure functions of what the nodes have answered; proof.py asks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from trainpkg.launch.facts import NodeFacts, RollCallError, name_nodes
from trainpkg.launch.network import is_loopback


def by_hand(listening: NodeFacts, calling: NodeFacts, address: str, port: int) -> str:
    """The check for both ends."""
    return f"By hand: `nc -l {port}` on {listening.host}, then `nc -v {address} {port}` on {calling.host}."


def require_own(address: str, said: str, first: NodeFacts, num_nodes: int) -> None:
    """Raises RollCallError when the address is not one of the first node's, or leads every node to itself."""
    if is_loopback(address) and num_nodes > 1:
        raise RollCallError(
            f"launch.master_addr = {said or address}: every one of the {num_nodes} nodes would wait for itself. Give "
            "an address of the first node that the others reach, or leave the key out"
        )
    if address not in first.addresses and not is_loopback(address):
        have = ", ".join(first.addresses) or "none"
        raise RollCallError(
            f"launch.master_addr = {said or address}: the address {address} is not on the first node {first.host}, "
            f"which has {have}. Ranks meet at an address of the first node's own interfaces, not at a service's, a "
            "login node's or a virtual one; or leave the key out"
        )


def agree_on_name(
    name: str, answers: Mapping[int, list[str] | str], nodes: Sequence[NodeFacts]
) -> tuple[list[str], str]:
    """The addresses that a name means on all nodes and that node 0 owns; a warning, or nothing.

    `answers`: per node, addresses, or why the name cannot be resolved. A node on which it leads to loopback has the
    usual `127.0.1.1` in its hosts file, which says nothing about the others.
    """
    useful = {i: [a for a in found if not is_loopback(a)] for i, found in answers.items() if not isinstance(found, str)}
    speaking = {index: found for index, found in useful.items() if found}
    home = [index for index, found in useful.items() if not found]
    unresolved = [index for index, found in answers.items() if isinstance(found, str)]
    table = resolution_table(answers, nodes)
    if unresolved:
        raise RollCallError(
            f"launch.master_addr = {name}: the name cannot be resolved on all nodes. Give the address itself, or leave "
            f"the key out\n{table}"
        )
    if not speaking:
        if not nodes[0].addresses:
            raise RollCallError(f"launch.master_addr = {name} leads to loopback on all nodes\n{table}")
        return nodes[0].addresses, (
            f"launch.master_addr = {name} leads every node to itself (127.0.1.1 in /etc/hosts?), so it is not used: "
            f"the first node's addresses are tried\n{table}"
        )
    common = [a for a in next(iter(speaking.values())) if all(a in found for found in speaking.values())]
    if not common:
        raise RollCallError(
            f"launch.master_addr = {name}: the nodes do not mean the same machine by this name. Mend /etc/hosts or the "
            f"DNS, give the address itself, or leave the key out\n{table}"
        )
    owned = [a for a in common if a in nodes[0].addresses]
    if not owned:
        require_own(common[0], name, nodes[0], len(nodes))
    warning = f"launch.master_addr = {name} leads {name_nodes([nodes[i] for i in home])} to itself; " if home else ""
    return owned, warning + (f"{owned[0]}, which the others mean by it, is used" if home else "")


def resolution_table(answers: Mapping[int, list[str] | str], nodes: Sequence[NodeFacts]) -> str:
    """`answer <- nodes`, one line each, the rarest first."""
    groups: dict[str, list[NodeFacts]] = defaultdict(list)
    for index, found in sorted(answers.items()):
        groups[found if isinstance(found, str) else ", ".join(found) or "nothing"].append(nodes[index])
    return "\n".join(
        f"  {text} <- {name_nodes(some)}" for text, some in sorted(groups.items(), key=lambda g: len(g[1]))
    )


def contradicting_addresses(nodes: Sequence[NodeFacts], own: Sequence[tuple[str, str]]) -> str:
    """A sentence on nodes of several hosts that would tell the others an address which leads elsewhere, or nothing."""
    if len({node.host for node in nodes}) == 1:
        return ""
    seen: dict[str, NodeFacts] = {}
    for node, (address, interface) in zip(nodes, own, strict=True):
        name = f"node {node.index} ({node.host})"
        if not address or is_loopback(address):
            return (
                f"the ranks of {name} would tell the others {address or 'no address'} ({interface or 'no interface'}), "
                f"where nobody reaches them; it has {', '.join(node.addresses) or 'none'}. Set launch.master_addr to "
                "an address on a network that all nodes share"
            )
        other = seen.setdefault(address, node)
        if other.host != node.host:
            return (
                f"node {other.index} ({other.host}) and {name} both have {address} ({interface}), as bridges of "
                "containers and virtual machines do: neither would reach the other. Set launch.master_addr to an "
                "address on a network that all nodes share"
            )
    return ""
