"""Who is which rank: hosts and ranks per node become a `LaunchPlan`, a value that can be printed, sent and compared.

Pure: the same arguments give the same plan on every machine, and nothing here opens a socket. Address and port of a
plan made here are a proposal (`master_proven` is false); the roll call replaces them by a port that rank 0 holds and
that every node has reached. Where hosts and counts come from is topology.py's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch.network import is_loopback, validate_address, validate_port
from trainpkg.launch.ports import candidate_ports, port_seed
from trainpkg.launch.slurm.grammar import MAX_HOSTS, find_duplicate
from trainpkg.launch.topology import resolve_topology
from trainpkg.launch.typed import command

MAX_RANKS_PER_NODE = 1024
SHOWN_NODES = 40


@dataclass(frozen=True)
class NodePlan:
    """One node: its ranks are `rank_offset` to `rank_offset + num_ranks - 1`."""

    host: str
    index: int
    rank_offset: int
    num_ranks: int


@dataclass(frozen=True)
class LaunchPlan:
    """All ranks of one start of a run. `master_proven`: rank 0 holds the port and every node has reached it."""

    world_size: int
    nodes: tuple[NodePlan, ...]
    master_addr: str
    master_port: int
    master_proven: bool = False
    job_id: str | None = None
    attempt: int = 1
    generation: int = 0

    @property
    def num_nodes(self) -> int:
        """Nodes of the plan."""
        return len(self.nodes)

    @property
    def rank_order(self) -> list[int]:
        """Indices of the nodes in the order of their ranks."""
        return sorted(range(len(self.nodes)), key=lambda index: self.nodes[index].rank_offset)

    def node_of_rank(self, rank: int) -> NodePlan:
        """The node on which a global rank runs."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not one of the {self.world_size} ranks")
        return next(node for node in self.nodes if 0 <= rank - node.rank_offset < node.num_ranks)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON types, as plan.json has it."""
        return vars(self) | {"nodes": [vars(node).copy() for node in self.nodes]}

    def to_json(self) -> str:
        """One line of JSON; equal plans give equal text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LaunchPlan:
        """The inverse of `to_dict`, for plans from elsewhere: ranks that overlap or leave gaps are a UserError."""
        try:
            nodes = [NodePlan(**node) for node in data["nodes"]]
            plan = cls(**{**data, "nodes": tuple(nodes)})
            ranks = [node.num_ranks for node in nodes]
            rebuilt = _lay_out([node.host for node in nodes], ranks, plan.rank_order)
        except (KeyError, TypeError) as error:
            raise UserError(f"This is not a launch plan of this version: {error}.") from error
        if plan.nodes != rebuilt or plan.world_size != sum(ranks):
            raise UserError("The launch plan contradicts itself: rank offsets or world_size do not add up.")
        return plan

    @classmethod
    def from_json(cls, text: str) -> LaunchPlan:
        """The inverse of `to_json`."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UserError(f"This is not a launch plan: {error}.") from error
        if not isinstance(data, dict):
            raise UserError("This is not a launch plan: a JSON object is needed.")
        return cls.from_dict(data)

    def describe(self, this_node: int | None = None) -> str:
        """The plan as a table for people; of many nodes only the first, the last and this one."""
        shown = set(range(len(self.nodes)))
        if len(self.nodes) > SHOWN_NODES:
            shown = {*range(SHOWN_NODES - 5), *range(len(self.nodes) - 4, len(self.nodes)), this_node or 0}
        width = max(4, *(len(self.nodes[index].host) for index in shown))
        lines = [f"{'node':>5}  {'host':<{width}}  {'ranks':>15}  {'count':>5}"]
        previous = -1
        for index in sorted(shown):
            if index != previous + 1:
                lines.append(f"  ...  ({index - previous - 1} more)")
            node, previous = self.nodes[index], index
            last = node.rank_offset + node.num_ranks - 1
            ranks = f"{node.rank_offset}-{last}" if node.num_ranks > 1 else str(last)
            mark = "  <- this node" if index == this_node else ""
            lines.append(f"{index:>5}  {node.host:<{width}}  {ranks:>15}  {node.num_ranks:>5}{mark}")
        proof = "held by rank 0" if self.master_proven else "a proposal, not yet proven"
        lines.append(f"world size {self.world_size} on {len(self.nodes)} node{'s' * (len(self.nodes) > 1)}")
        lines.append(f"master {self.master_addr} port {self.master_port} ({proof})")
        return "\n".join(lines)


def make_plan(
    hosts: Sequence[str],
    ranks_per_node: int | Sequence[int],
    *,
    master_addr: str | None = None,
    master_port: int | None = None,
    master_proven: bool = False,
    one_machine: bool = False,
    job_id: str | None = None,
    attempt: int = 1,
    generation: int = 0,
    rank_order: Sequence[int] | None = None,
) -> LaunchPlan:
    """The plan for these hosts, in this order; the first is the master unless another address is given.

    Args:
        hosts: one name per node; on `one_machine` (simulated nodes) they need not resolve.
        ranks_per_node: one number for all nodes, or one per node.
        master_port: default is the first port of the seed (job, attempt, generation).
        rank_order: indices of the nodes in the order of their ranks, where a launcher has an order of its own.

    Raises:
        UserError: no hosts, a host twice, counts that do not fit, a node without ranks, or a master address that leads
            each of several machines to itself.
    """
    counts = [ranks_per_node] * len(hosts) if isinstance(ranks_per_node, int) else list(ranks_per_node)
    nodes = _lay_out(hosts, counts, rank_order)
    address = master_addr if master_addr is not None else ("127.0.0.1" if one_machine else hosts[0])
    validate_address(address, "The master address")
    if len(nodes) > 1 and not one_machine and is_loopback(address):
        raise UserError(
            f"The master address is {address!r} for {len(nodes)} nodes ({hosts[0]} to {hosts[-1]}): each of them would "
            "wait for itself. Give an address of the first node that the others reach, or leave the choice to the plan."
        )
    if master_port is None:
        master_port = next(candidate_ports(port_seed(job_id, attempt, generation)))
    if not 1 <= master_port <= 65_535:
        raise UserError(f"The master port is {master_port}, which is not between 1 and 65535.")
    return LaunchPlan(sum(counts), nodes, address, master_port, master_proven, job_id, attempt, generation)


def rank_environment(plan: LaunchPlan, node_index: int, local_rank: int) -> dict[str, str]:
    """The variables that torch and its users expect, with torchrun's names and meanings.

    Raises:
        ValueError: no such node, or no such rank on it (a rank beyond its node would take a device that is not there).
    """
    if not 0 <= node_index < len(plan.nodes):
        raise ValueError(f"node {node_index} is not one of the {len(plan.nodes)} nodes")
    node = plan.nodes[node_index]
    if not 0 <= local_rank < node.num_ranks:
        raise ValueError(f"local rank {local_rank} is not one of the {node.num_ranks} on node {node_index}")
    return {
        "RANK": str(node.rank_offset + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(node.num_ranks),
        "NODE_RANK": str(node_index),
        "GROUP_RANK": str(node_index),
        "NUM_NODES": str(len(plan.nodes)),
        "MASTER_ADDR": plan.master_addr,
        "MASTER_PORT": str(plan.master_port),
    }


def _lay_out(hosts: Sequence[str], counts: Sequence[int], order: Sequence[int] | None = None) -> tuple[NodePlan, ...]:
    """Offsets are prefix sums of the counts, in the order of the ranks: uneven nodes need no case of their own."""
    if not 0 < len(hosts) <= MAX_HOSTS:
        raise UserError(f"A plan needs 1 to {MAX_HOSTS} nodes, not {len(hosts)}.")
    if (twice := find_duplicate(hosts)) is not None:
        raise UserError(f"The host {twice} is named twice: one host is one node.")
    if len(counts) != len(hosts):
        raise UserError(f"There are {len(hosts)} nodes ({hosts[0]} to {hosts[-1]}), but ranks for {len(counts)} nodes.")
    for index, (host, count) in enumerate(zip(hosts, counts, strict=True)):
        if not 1 <= count <= MAX_RANKS_PER_NODE:
            raise UserError(
                f"Node {index} ({host}) has {count} ranks (GPUs), but each node takes part with 1 to "
                f"{MAX_RANKS_PER_NODE}. Leave the node out, or find out why it shows none."
            )
    order = range(len(hosts)) if order is None else order
    assert sorted(order) == list(range(len(hosts))), order
    offsets = dict(zip(order, itertools.accumulate((counts[index] for index in order), initial=0), strict=False))
    return tuple(NodePlan(host, index, offsets[index], counts[index]) for index, host in enumerate(hosts))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `plan`: all optional inside a job, and enough without Slurm, GPU and network."""
    parser.add_argument("--hosts", metavar="LIST", help="host list such as rack[1-2]n[01-16],login1, in node order")
    parser.add_argument("--num-nodes", metavar="N", help="number of nodes; without --hosts they are simulated here")
    parser.add_argument("--node-rank", metavar="K", help="index of this node, from 0")
    parser.add_argument(
        "--gpus-per-node", metavar="G", help="ranks per node: one number, or one per node as in 4(x2),2"
    )
    parser.add_argument("--master-addr", metavar="ADDR", help="address of rank 0 (default: the first host)")
    parser.add_argument("--master-port", metavar="PORT", help="port of rank 0 (default: derived from the job id)")
    parser.add_argument(
        "--where",
        choices=("auto", "slurm", "local"),
        default="auto",
        help="local: ignore the Slurm job that this shell is in; slurm: insist on one",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: the plan, this_node, where, warnings")
    command.add_plan_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the plan that the environment and the flags agree on."""
    topology = resolve_topology(
        os.environ,
        where=args.where,
        hosts=args.hosts,
        num_nodes=args.num_nodes,
        node_rank=args.node_rank,
        gpus_per_node=args.gpus_per_node,
    )
    typed = command.read_plan_arguments(args, topology.hosts if topology.where == "hosts" else None)
    hosts = topology.hosts
    if typed is not None and topology.where == "local":  # machines whose names nobody has said
        hosts = (typed.host, *(f"node{index}" for index in range(1, len(hosts))))
    plan = make_plan(
        hosts,
        topology.ranks_per_node,
        master_addr=args.master_addr if typed is None else typed.host,
        master_port=None if args.master_port is None else validate_port(args.master_port, "--master-port"),
        one_machine=topology.where == "local" and (typed is None or typed.local),
        job_id=topology.job_id,
    )
    this_node = topology.this_node
    lines = [] if typed is None else typed.lines(plan.num_nodes, args.gpus_per_node)
    if args.json:
        here = None if this_node is None else plan.to_dict()["nodes"][this_node]
        shown = plan.to_dict() | {"this_node": here, "where": topology.where, "warnings": topology.warnings}
        shown |= {"commands": lines} if lines else {}
        print(json.dumps(shown, indent=2))
        return 0
    print(plan.describe(this_node))
    where = {"slurm": "hosts from Slurm", "hosts": "hosts from --hosts", "local": "this machine"}[topology.where]
    print("\n".join(lines) or where)
    for warning in topology.warnings:
        print(f"trainpkg: warning: {warning}", file=sys.stderr)
    return 0
