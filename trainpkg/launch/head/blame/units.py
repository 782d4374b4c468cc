"""What tells of its end: each rank, or where no rank is ours the one program of a node. Pure.

A program that is not ours says nothing of itself, so its records know no steps; and one that binds the ranks' port
itself may find it taken, which is nobody's fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainpkg.launch.head.blame.failure import Record
from trainpkg.launch.plan import LaunchPlan
from trainpkg.launch.spec import PROGRAMS, Spec


def units(spec: Spec, plan: LaunchPlan) -> dict[int, int]:
    """Number of each unit -> its node. Programs are numbered as their nodes."""
    if spec.foreign:
        return {node.index: node.index for node in plan.nodes}
    return {node.rank_offset + local: node.index for node in plan.nodes for local in range(node.num_ranks)}


def num_programs(spec: Spec) -> int:
    """Programs that start ranks of ours, whose ends are awaited beside those of the ranks."""
    return spec.num_nodes if spec.by_program and not spec.foreign else 0


def as_seen(spec: Spec, plan: LaunchPlan, record: Record, ended: Mapping[str, Any]) -> Record:
    """The record of a unit as people shall read it. `ended`: what its node told of the end."""
    if spec.silent:
        record = dataclasses.replace(record, counts=record.step is not None)
    if spec.foreign:
        record = dataclasses.replace(record, rank=None, part=PROGRAMS[spec.backend])
    return _port_taken(plan, record) if ended.get("port_taken") else record


def of_program(plan: LaunchPlan, node: int, ended: Mapping[str, Any], now_s: float, step: int | None) -> Record | None:
    """The record of a program that started a node's ranks, or None where they explain its end."""
    if not ended["trouble"]:
        return None
    record = Record(
        kind="program",
        node=node,
        host=plan.nodes[node].host,
        time_s=now_s,
        step=step,
        exit_code=ended["exit_code"],
        signal=ended["signal"],
        message=ended["trouble"],
        last_lines=tuple(ended["last_lines"]),
        part=f"{ended['name']} (process {ended['pid']})",
    )
    return _port_taken(plan, record) if ended.get("port_taken") else record


def _port_taken(plan: LaunchPlan, record: Record) -> Record:
    text = (
        f"found port {plan.master_port} of {plan.master_addr} taken: another program bound it after node 0 had let go "
        "of it"
    )
    return dataclasses.replace(record, kind="port_taken", message=text)
