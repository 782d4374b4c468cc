"""What this node's ranks of one generation are: their places, programs, environments and logs, as values."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from trainpkg.launch import network
from trainpkg.launch.node import environment
from trainpkg.launch.plan import LaunchPlan
from trainpkg.launch.spec import Spec
from trainpkg.launch.start.starter import Order, Orders


def make_orders(
    spec: Spec,
    spec_path: Path,
    plan: LaunchPlan,
    index: int,
    device: str,
    env: Mapping[str, str],
    listen: socket.socket | None,
) -> Orders:
    """The orders of a node. `listen`: the port that node 0 holds for rank 0, where rank 0 can take it over."""
    mine, folder = plan.nodes[index], spec.generation_dir(plan.generation)
    orders = []
    for local_rank in range(mine.num_ranks):
        rank = mine.rank_offset + local_rank
        changes = environment.for_rank(spec, spec_path, plan, index, local_rank, device, env)
        changes["TRAINPKG_REPORT"] = spec.report_address(index)
        log = str(folder / f"rank-{rank}.log")
        argv = [sys.executable, "-u", "-m", "trainpkg.launch.start.enter", spec.entry]
        orders.append(Order(rank, local_rank, spec.entry, argv, changes, log, listen if rank == 0 else None))
    return Orders(plan, index, own_address(spec, plan, index), folder, orders)


def own_address(spec: Spec, plan: LaunchPlan, index: int) -> str:
    """This node's own address towards the master: what its peers see."""
    if index == 0:
        return plan.master_addr
    return network.source_address_towards(plan.master_addr, plan.master_port) or ""
