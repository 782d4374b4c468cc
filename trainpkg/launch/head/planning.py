"""What the next attempt is: the hosts and limits of the Slurm job that this process is in, or nodes on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head import attempt
from trainpkg.launch.head.attempt import Folder
from trainpkg.launch.head.steps import mpi, places
from trainpkg.launch.slurm import control, het
from trainpkg.launch.slurm.allocation import Allocation, read_allocation
from trainpkg.launch.spec import Spec


def plan_attempt(
    run: Run, folder: Folder, where: str, env: Mapping[str, str], overrides: Mapping[str, Any]
) -> tuple[Spec, list[str], list[str]]:
    """The spec of the next attempt, all hosts of the Slurm job, and lines on what looks odd in its environment."""
    if where == "typed":  # hosts are known once their nodes have called
        mpi.refuse_typed(run.launch.backend)
        return attempt.make_spec(run, folder, [f"node{k}" for k in range(run.launch.nodes)], where, **overrides), [], []
    num_nodes = stage_nodes(run, folder.stage)
    allocation = read_allocation(env) if where != "local" else None
    if where == "slurm" and allocation is None:
        raise UserError("launch.where = 'slurm', but SLURM_JOB_ID is not set: this process is in no Slurm job")
    if where == "auto" and allocation is not None and shutil.which("srun") is None and num_nodes > 1:
        raise UserError(
            f"launch.nodes = {num_nodes} in Slurm job {allocation.job_id}, but there is no srun in PATH here. "
            f"{control.OUTSIDE}; launch.where: local simulates the nodes on this machine"
        )
    if where == "auto" and (allocation is None or shutil.which("srun") is None):
        allocation = None
    if allocation is None:
        hosts = [f"sim{index}" for index in range(num_nodes)]
        starter = mpi.spec_fields(run.launch, False, env)
        return attempt.make_spec(run, folder, hosts, "local", **(starter | dict(overrides))), [], []
    fields, parts = het.whole_job(control.ask_slurm(control.own_name(env)))
    hosts, job_hosts = (places.hosts_of_job(allocation, fields, number) for number in (num_nodes, None))
    more = {
        "het": [list(part) for part in het.parts_for(parts, hosts, job_hosts, run.launch.backend)],
        "slurm_job_id": allocation.job_id,
        "deadline": places.end_of_job(allocation, fields),
        "deadline_lead_s": run.slurm.lead_s(places.limit_of_job(fields)),
        "cpus_per_task": min(run.slurm.cpus_per_task, cpus_per_node(allocation, fields)),
        **mpi.spec_fields(run.launch, True, env),
    }
    if run.launch.gpus_per_node is None and run.launch.device != "cpu":
        more["step_gpus"] = places.gpus_of_exclusive_job(fields, hosts)
    # Slurm 22.05 refuses an overlapping step ("Insufficient GRES") where a total of GPUs was split unevenly over nodes
    total_of_gpus = "gpu" in fields.get("TresPerJob", "")
    more["overlap"] = "SLURM_STEP_ID" in env or run.launch.backend in ("srun", "mpi") or not total_of_gpus
    spec = attempt.make_spec(run, folder, hosts, "slurm", **(more | dict(overrides)))
    return spec, job_hosts, [f"warning: {warning}" for warning in allocation.warnings]


def stage_nodes(run: Run, stage: str) -> int:
    """Nodes of a stage: a smoke test takes few, an evaluation its own number."""
    if stage == "smoke":
        return min(run.launch.nodes, run.smoke.max_nodes)
    return run.evaluate.nodes or run.launch.nodes if stage == "evaluate" else run.launch.nodes


def cpus_per_node(allocation: Allocation, fields: Mapping[str, str]) -> int:
    """CPUs that a task may have on each node: asking srun for more than the job has is refused."""
    if allocation.cpus_per_node:
        return min(allocation.cpus_per_node)
    cpus, nodes = fields.get("NumCPUs", ""), fields.get("NumNodes", "1")
    return max(1, int(cpus) // int(nodes)) if cpus.isdigit() and nodes.isdigit() else 1
