"""The command line of backend `command`: any program, once per node, from a template. Pure."""

from __future__ import annotations

import sys

from trainpkg import template
from trainpkg.launch.plan import LaunchPlan
from trainpkg.launch.spec import Spec
from trainpkg.launch.start.torchrun import GUARD


def program_command(spec: Spec, plan: LaunchPlan, index: int) -> list[str]:
    """What node `index` runs."""
    assert spec.command is not None
    return template.fill_line(spec.command, {**placeholders(spec, plan, index), "python": sys.executable}, GUARD)


def placeholders(spec: Spec, plan: LaunchPlan, index: int) -> dict[str, str]:
    """What the names in braces stand for on one node (`template.NODE`)."""
    node = plan.nodes[index]
    address = f"[{plan.master_addr}]" if ":" in plan.master_addr else plan.master_addr
    return {
        "rank_offset": str(node.rank_offset),
        "world_size": str(plan.world_size),
        "node_rank": str(index),
        "num_nodes": str(plan.num_nodes),
        "gpus_per_node": str(node.num_ranks),
        "master_addr": plan.master_addr,
        "master_port": str(plan.master_port),
        "dist_url": f"tcp://{address}:{plan.master_port}",
        "hosts": ",".join(other.host for other in plan.nodes),
        "run": spec.run,
        "run_dir": spec.run_dir,
    }
