"""What this node's ranks of one generation are: their places, programs, environments and logs, as values."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from trainpkg import template
from trainpkg.launch.node import environment
from trainpkg.launch.plan import LaunchPlan, make_plan
from trainpkg.launch.slurm.grammar import expand_counts
from trainpkg.launch.spec import Spec
from trainpkg.launch.start.command import placeholders
from trainpkg.launch.start.starter import Order, Orders
from trainpkg.launch.start.torchrun import simulated_address
from trainpkg.launch.wire import Message

OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
# What srun says to the one task that is the node's launcher. A script that asks Slurm before RANK (Lightning, say)
# would take it for a rank's; where ranks are tasks it is one. In a step, Open MPI looks for srun and aborts the process
# where it does not find it as it was built: Lightning has mpi4py, if there is one, ask whether it is under MPI.
OF_A_TASK = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEP_ID",
    "SLURM_STEPID",
)  # fmt: skip
OF_THE_MEETING = ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


def plan_of(spec: Spec, go: Message) -> LaunchPlan:
    """The plan that the coordinator's order to start stands for."""
    return make_plan(
        spec.hosts,
        expand_counts(go["counts"]),
        master_addr=go["master_addr"],
        master_port=go["master_port"],
        one_machine=True,  # the coordinator has proven the address
        generation=go["generation"],
        rank_order=go.get("rank_order"),
    )


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
        of_program = {name: value for name, value in changes.items() if name not in OF_A_RANK}
        if spec.by_program:  # where ranks meet, and which group they are, is what their own launcher said
            changes = {name: value for name, value in changes.items() if name not in OF_THE_MEETING}
        if spec.script and (not spec.ranks_are_tasks or spec.mpi == "mpirun"):  # whose daemon is the task there
            changes |= dict.fromkeys(OF_A_TASK)
        elif spec.script and spec.backend == "srun":  # sbatch says it to the batch script alone, and submitit reads it
            changes["SLURM_JOB_NUM_NODES"] = str(plan.num_nodes)
        argv = rank_command(spec, placeholders(spec, plan, index) | {"rank": str(rank), "local_rank": str(local_rank)})
        log = str(folder / f"rank-{rank}.log")
        orders.append(Order(rank, local_rank, spec.entry, argv, changes, log, listen if rank == 0 else None))
    if spec.simulated:  # of a job that this machine may be part of
        of_program |= {name: None for name in env if name.startswith("SLURM_")}
    own = of_program["TRAINPKG_ADDRESS"] or plan.master_addr
    local_addr = simulated_address(spec, index, plan.master_addr) if spec.simulated else own
    return Orders(plan, index, local_addr, folder, orders, of_program)


def rank_command(spec: Spec, values: Mapping[str, str]) -> list[str]:
    """What a rank is as a program of its own: our entry, or the user's script with its placeholders filled in."""
    if not spec.script:
        return [sys.executable, "-u", "-m", "trainpkg.launch.start.enter", spec.entry]
    return [sys.executable, "-u", *(template.fill(word, values) for word in spec.script)]
