"""What Slurm's environment says about this job, read once, checked, and typed: the `Allocation`.

Reads only variables that Slurm documents and that mean what their name says. Left alone on purpose: SLURM_JOB_NUMNODES
(does not exist), SLURM_LAUNCH_NODE_IPADDR (the host where srun ran, often a login node), SLURM_NPROCS and SLURM_NTASKS
(tasks of the job's request, not ranks). Asks no Slurm command and no GPU. The notations are grammar.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainpkg.errors import UserError
from trainpkg.launch.slurm import het
from trainpkg.launch.slurm.grammar import (
    MAX_HOSTS,
    Gres,
    count_gpus,
    expand_counts,
    expand_hosts,
    find_duplicate,
    parse_devices,
    parse_gres,
    parse_int,
    quote,
)

__all__ = ["Allocation", "Gres", "expand_counts", "expand_hosts", "parse_gres", "read_allocation", "require_one_task"]

_INTERACTIVE_STEP = "4294967290"  # the shell that salloc opens on the first node: a step, but not one that runs ranks
_NO_TIME = frozenset({0, 4294967294, 4294967295})  # Slurm's "not set" and "infinite"


@dataclass(frozen=True)
class Allocation:
    """The nodes that a launch may use, in Slurm's order, and which of them this process is on.

    Inside a step `hosts` are the step's, which may be fewer than `job_hosts`. What the environment leaves open is None
    or empty: a rule's shell under Snakemake sees SLURM_JOB_ID and nothing else.
    """

    job_id: str
    hosts: tuple[str, ...] = ()
    num_nodes: int | None = None
    node_rank: int | None = None
    in_step: bool = False
    job_hosts: tuple[str, ...] = ()
    tasks_per_node: tuple[int, ...] = ()
    cpus_per_node: tuple[int, ...] = ()
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None  # requested for each node
    gpus_on_node: int | None = None  # granted on this one
    devices: tuple[str, ...] | None = None  # tokens of CUDA_VISIBLE_DEVICES
    local_task: int | None = None
    restart_count: int = 0
    deadline: float | None = None  # unix seconds
    warnings: tuple[str, ...] = ()


def read_allocation(env: Mapping[str, str]) -> Allocation | None:
    """The allocation of this environment, or None outside Slurm.

    Raises:
        UserError: a value that Slurm would not write, or two that contradict each other.
    """
    env = het.as_one_job(env)
    job_name = "SLURM_JOB_ID" if env.get("SLURM_JOB_ID") else "SLURM_JOBID"
    job_id = env.get(job_name, "")
    lists = [name for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST") if name in env]
    if not job_id:
        if lists:
            raise UserError(
                f"{lists[0]} is {quote(env[lists[0]])} but SLURM_JOB_ID is not set: a leftover of another job. "
                f"Unset {' and '.join(lists)}, or start inside a job."
            )
        return None
    parse_int(job_id, job_name)
    warnings: list[str] = []
    interactive = env.get("SLURM_STEP_ID") == _INTERACTIVE_STEP
    step_hosts = () if interactive else _hosts(env, "SLURM_STEP_NODELIST")
    job_list = "SLURM_JOB_NODELIST" if "SLURM_JOB_NODELIST" in env else "SLURM_NODELIST"
    job_hosts = _hosts(env, job_list)
    hosts = step_hosts or job_hosts
    _check_step(env, step_hosts, job_hosts, job_list, warnings)
    per_node, on_node, devices = _gpus(env, warnings)
    num_nodes = _num_nodes(env, step_hosts, job_hosts, job_list)
    return Allocation(
        job_id=job_id,
        hosts=hosts,
        num_nodes=num_nodes,
        node_rank=_node_rank(env, hosts, num_nodes),
        in_step=bool(step_hosts),
        job_hosts=job_hosts or step_hosts,
        tasks_per_node=_counts(
            env, "SLURM_STEP_TASKS_PER_NODE" if step_hosts else "SLURM_TASKS_PER_NODE", num_nodes, warnings
        ),
        cpus_per_node=_cpus_per_node(env, hosts, job_hosts, warnings),
        cpus_per_task=_int(env, "SLURM_CPUS_PER_TASK", low=1),
        gpus_per_node=per_node,
        gpus_on_node=on_node,
        devices=devices,
        local_task=_int(env, "SLURM_LOCALID"),
        restart_count=_int(env, "SLURM_RESTART_COUNT") or 0,
        deadline=_deadline(env),
        warnings=tuple(warnings),
    )


def require_one_task(allocation: Allocation) -> None:
    """Refuse to be started once per rank where one launcher per node is meant: the second would find every port taken.

    Raises:
        UserError: the step has several tasks on this node.
    """
    num_tasks = 1
    if allocation.in_step and allocation.tasks_per_node:
        num_tasks = allocation.tasks_per_node[allocation.node_rank or 0]
    if allocation.in_step and (num_tasks > 1 or allocation.local_task):
        node = allocation.node_rank or 0
        raise UserError(
            f"srun started {max(num_tasks, (allocation.local_task or 0) + 1)} tasks on node {node} "
            f"({allocation.hosts[node]}; SLURM_STEP_TASKS_PER_NODE, SLURM_LOCALID={allocation.local_task}), but one "
            "launcher per node starts all ranks there. Use `srun --ntasks-per-node=1`."
        )


def _int(env: Mapping[str, str], name: str, low: int = 0) -> int | None:
    return parse_int(env[name], name, low=low) if name in env else None


def _hosts(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    if name not in env:
        return ()
    hosts = expand_hosts(env[name], name)
    if len(set(hosts)) < len(hosts):
        raise UserError(f"{name} is {quote(env[name])}: it names the host {find_duplicate(hosts)} twice.")
    return tuple(hosts)


def _check_step(
    env: Mapping[str, str], step: tuple[str, ...], job: tuple[str, ...], job_list: str, warnings: list[str]
) -> None:
    """A step inside its job is fine and worth a word; a step outside of it is a leftover of another job."""
    if not step or not job or step == job:
        return
    names = f"SLURM_STEP_NODELIST is {quote(env['SLURM_STEP_NODELIST'])}"
    if strangers := set(step) - set(job):
        raise UserError(
            f"{names}, but {min(strangers)} is not among the hosts of {job_list}={quote(env[job_list])}: one of "
            "them is a leftover of another job. Unset all SLURM_* variables before asking for a job from inside a job."
        )
    warnings.append(
        f"{names}: {len(step)} of the job's {len(job)} nodes ({job_list}={quote(env[job_list])}). "
        "Ranks start on the step's nodes only, in the step's order."
    )


def _num_nodes(env: Mapping[str, str], step: tuple[str, ...], job: tuple[str, ...], job_list: str) -> int | None:
    """The number of nodes, after every count has been held against the list that it speaks of.

    srun rewrites SLURM_NNODES for its step and leaves the job's list alone, so inside a step both counts are right.
    """
    rules = [
        ("SLURM_STEP_NUM_NODES", [("SLURM_STEP_NODELIST", step)]),
        ("SLURM_JOB_NUM_NODES", [("SLURM_STEP_NODELIST", step), (job_list, job)]),
        ("SLURM_NNODES", [("SLURM_STEP_NODELIST", step), (job_list, job)]),
    ]
    if env.get("SLURM_STEP_ID") == _INTERACTIVE_STEP:
        rules = [(name, lists) for name, lists in rules[1:] if env.get(name) != env.get("SLURM_STEP_NUM_NODES")]
    counts: dict[str, int] = {}
    for name, lists in rules:
        if name not in env:
            continue
        counts[name] = parse_int(env[name], name, low=1, high=MAX_HOSTS)
        known = [(source, hosts) for source, hosts in lists if hosts]
        if known and counts[name] not in [len(hosts) for _, hosts in known]:
            source, hosts = known[0]
            raise UserError(
                f"{name} is {quote(env[name])}, but {source}={quote(env[source])} has {len(hosts)} hosts: one of "
                "them is wrong, or a leftover of another job. Start through srun, and set neither by hand."
            )
    if len(set(counts.values())) > 1 and not step:
        said = " but ".join(f"{name} is {quote(env[name])}" for name in counts)
        raise UserError(f"{said}: they speak of the same nodes. Set neither by hand.")
    return len(step or job) or next(iter(counts.values()), None)


def _node_rank(env: Mapping[str, str], hosts: tuple[str, ...], num_nodes: int | None) -> int | None:
    """This node's index, which SLURMD_NODENAME (written by the node's own daemon) must confirm."""
    rank = _int(env, "SLURM_NODEID")
    if rank is None:
        return None
    if num_nodes is not None and rank >= num_nodes:
        raise UserError(
            f"SLURM_NODEID is {quote(env['SLURM_NODEID'])}, but there are {num_nodes} nodes, counted from 0. "
            "It is a leftover of another step: start through srun."
        )
    name = env.get("SLURMD_NODENAME")
    if name is not None and hosts and hosts[rank] != name:
        raise UserError(
            f"SLURM_NODEID is {quote(env['SLURM_NODEID'])}, which is host {hosts[rank]} of the node list, but "
            f"SLURMD_NODENAME is {quote(name)}. One of them is a leftover of another job: start through srun."
        )
    return rank


def _counts(env: Mapping[str, str], name: str, num_nodes: int | None, warnings: list[str]) -> tuple[int, ...]:
    if name not in env:
        return ()
    counts = expand_counts(env[name], name)
    if num_nodes is not None and len(counts) != num_nodes:
        warnings.append(f"{name} is {quote(env[name])}, for {len(counts)} nodes instead of {num_nodes}: not used.")
        return ()
    return tuple(counts)


def _cpus_per_node(
    env: Mapping[str, str], hosts: tuple[str, ...], job: tuple[str, ...], warnings: list[str]
) -> tuple[int, ...]:
    """SLURM_JOB_CPUS_PER_NODE counts along the job's hosts; a step picks its own out of them."""
    counts = _counts(env, "SLURM_JOB_CPUS_PER_NODE", len(job) or None, warnings)
    if not job or not counts:
        return ()
    cpus = dict(zip(job, counts, strict=True))
    return tuple(cpus[host] for host in hosts)


def _gpus(env: Mapping[str, str], warnings: list[str]) -> tuple[int | None, int | None, tuple[str, ...] | None]:
    """GPUs asked for on each node, granted on this one, and shown to this process."""
    asked, granted, tokens = (
        env.get(name) for name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES")
    )
    per_node = None if asked is None else count_gpus(asked, "SLURM_GPUS_PER_NODE")
    on_node = None if granted is None else count_gpus(granted, "SLURM_GPUS_ON_NODE")
    devices = None if tokens is None else tuple(parse_devices(tokens))
    if asked is not None and granted is not None and per_node != on_node:
        warnings.append(f"SLURM_GPUS_PER_NODE is {quote(asked)}, but SLURM_GPUS_ON_NODE is {quote(granted)} here.")
    if on_node is not None and devices is not None and tokens is not None and len(devices) != on_node:
        warnings.append(
            f"CUDA_VISIBLE_DEVICES is {quote(tokens)} ({len(devices)} devices), but SLURM_GPUS_ON_NODE is {on_node}: "
            "a GPU binding of srun (--gpus-per-task, --gpu-bind) or a line of a start-up file hides some."
        )
    return per_node, on_node, devices


def _deadline(env: Mapping[str, str]) -> float | None:
    end = _int(env, "SLURM_JOB_END_TIME")
    return None if end is None or end in _NO_TIME else float(end)
