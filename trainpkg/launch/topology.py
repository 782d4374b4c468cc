"""Which nodes, how many ranks on each, and which node this is: from flags, from Slurm, or from this machine alone.

A flag may add what the environment leaves open; where the two contradict each other, neither wins and the user hears of
both. `--hosts` also helps where the environment's own list cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainpkg.errors import UserError
from trainpkg.launch.network import visible_gpus
from trainpkg.launch.slurm.allocation import Allocation, read_allocation
from trainpkg.launch.slurm.grammar import MAX_HOSTS, expand_counts, expand_hosts, parse_int, quote

NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")


@dataclass(frozen=True)
class Topology:
    """Hosts in node order with their numbers of ranks; `this_node` is None where nothing says which one this is.

    `where` is "slurm", "hosts" (named by flag, outside Slurm) or "local" (one machine, simulated nodes).
    """

    hosts: tuple[str, ...]
    ranks_per_node: tuple[int, ...]
    this_node: int | None
    where: str
    job_id: str | None = None
    warnings: tuple[str, ...] = ()


def resolve_topology(
    env: Mapping[str, str],
    *,
    where: str = "auto",
    hosts: str | None = None,
    num_nodes: str | None = None,
    node_rank: str | None = None,
    gpus_per_node: str | None = None,
) -> Topology:
    """The topology that the flags (as typed, None = not given) and the environment agree on.

    Raises:
        UserError: they contradict each other, or together do not say enough.
    """
    warnings: list[str] = []
    allocation = _allocation(env, where, hosts, warnings)
    nodes = _hosts(allocation, hosts, num_nodes)
    this_node = _this_node(allocation, len(nodes), node_rank)
    counts = _counts(env, allocation, nodes, this_node, gpus_per_node, warnings)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name in env:
            warnings.append(
                f"{name}={quote(env[name])} of the environment is not used: the launcher chooses and proves it."
            )
    return Topology(
        hosts=nodes,
        ranks_per_node=counts,
        this_node=this_node,
        where="slurm" if allocation else "hosts" if hosts is not None else "local",
        job_id=allocation.job_id if allocation else None,
        warnings=tuple(warnings),
    )


def _allocation(env: Mapping[str, str], where: str, hosts: str | None, warnings: list[str]) -> Allocation | None:
    if where == "local":
        return None
    try:
        allocation = read_allocation(env)
    except UserError as error:
        if hosts is None or not any(name in env for name in NODE_LISTS):
            raise
        allocation = read_allocation({name: value for name, value in env.items() if name not in NODE_LISTS})
        warnings.append(f"--hosts is used in place of the environment's list. {error}")
    if allocation is None and where == "slurm":
        raise UserError("Slurm is asked for (slurm), but SLURM_JOB_ID is not set: start inside a job, or say local.")
    warnings.extend(allocation.warnings if allocation else ())
    return allocation


def _hosts(allocation: Allocation | None, hosts: str | None, num_nodes: str | None) -> tuple[str, ...]:
    known = allocation.hosts if allocation else ()
    count = None if num_nodes is None else parse_int(num_nodes, "--num-nodes", low=1, high=MAX_HOSTS)
    named = None if hosts is None else tuple(expand_hosts(hosts, "--hosts"))
    if named is not None:
        if known and named != known:
            raise UserError(
                f"--hosts is {quote(hosts or '')}, but Slurm's environment lists {quote(','.join(known))} (in that "
                "order). Leave the flag out, or plan for other nodes with `--where local` or outside the job."
            )
        if allocation and allocation.num_nodes not in (None, len(named)):
            raise UserError(
                f"--hosts is {quote(hosts or '')}, {len(named)} hosts, but Slurm's environment (SLURM_NNODES or "
                f"SLURM_STEP_NUM_NODES) speaks of {allocation.num_nodes} nodes."
            )
    nodes = named or known
    expected = len(nodes) or (allocation.num_nodes if allocation else None)
    if count is not None and expected not in (None, count):
        said = f"--hosts={quote(hosts)} names" if hosts is not None else "Slurm's environment (SLURM_NNODES, ...) has"
        raise UserError(f"--num-nodes is {count}, but {said} {expected}. Leave one of them out.")
    if nodes:
        return nodes
    if allocation:
        raise UserError(
            f"SLURM_JOB_ID is {quote(allocation.job_id)}, but no SLURM_JOB_NODELIST says on which hosts (Snakemake's "
            "jobs do not show it; the tasks of an srun do). Start through srun, give --hosts, or say `--where local`."
        )
    return tuple(f"sim{index}" for index in range(count or 1))


def _this_node(allocation: Allocation | None, num_nodes: int, node_rank: str | None) -> int | None:
    known = allocation.node_rank if allocation else None
    if node_rank is None:
        return 0 if num_nodes == 1 else known
    asked = parse_int(node_rank, "--node-rank", high=MAX_HOSTS)
    if asked >= num_nodes:
        raise UserError(f"--node-rank is {asked}, but there are {num_nodes} nodes, counted from 0.")
    if known not in (None, asked):
        raise UserError(f"--node-rank is {asked}, but SLURM_NODEID is {known}. Leave the flag out inside a step.")
    return asked


def _counts(
    env: Mapping[str, str],
    allocation: Allocation | None,
    hosts: tuple[str, ...],
    this_node: int | None,
    flag: str | None,
    warnings: list[str],
) -> tuple[int, ...]:
    if flag is None:
        return (_default_count(env, allocation, len(hosts), this_node, warnings),) * len(hosts)
    counts = expand_counts(flag, "--gpus-per-node")
    if len(counts) == 1 and "(" not in flag:
        counts *= len(hosts)
    if len(counts) != len(hosts):
        raise UserError(
            f"--gpus-per-node is {quote(flag)}, for {len(counts)} nodes, but there are {len(hosts)} "
            f"({hosts[0]} to {hosts[-1]}). Give one number for all, or one for each as in `4(x2),2`."
        )
    if allocation:
        _compare(allocation, hosts, counts, this_node, flag, warnings)
    return tuple(counts)


def _compare(
    allocation: Allocation,
    hosts: tuple[str, ...],
    counts: list[int],
    this_node: int | None,
    flag: str,
    warnings: list[str],
) -> None:
    """More ranks than GPUs is a contradiction; fewer may be meant, and is said aloud."""
    known = [("SLURM_GPUS_PER_NODE", index, allocation.gpus_per_node) for index in range(len(hosts))]
    if this_node is not None and allocation.node_rank is not None:
        shown = None if allocation.devices is None else len(allocation.devices)
        known += [
            ("SLURM_GPUS_ON_NODE", this_node, allocation.gpus_on_node),
            ("CUDA_VISIBLE_DEVICES", this_node, shown),
        ]
    fewer = set()
    for name, index, granted in known:
        if not granted:  # unknown, or a run on CPUs
            continue
        if counts[index] > granted:
            raise UserError(
                f"--gpus-per-node is {quote(flag)}, {counts[index]} for node {index} ({hosts[index]}), but {name} "
                f"shows {granted} GPUs there. Leave the flag out, or ask Slurm for more."
            )
        if counts[index] < granted and name not in fewer:
            fewer.add(name)
            warnings.append(f"--gpus-per-node is {quote(flag)}, but {name} shows {granted} GPUs: some stay idle.")


def _default_count(
    env: Mapping[str, str], allocation: Allocation | None, num_nodes: int, this_node: int | None, warnings: list[str]
) -> int:
    if allocation is None:
        return len(visible_gpus(env)) or 1  # no GPU in sight: one process on the CPU
    if allocation.gpus_per_node:
        return allocation.gpus_per_node
    here = allocation.gpus_on_node or (len(allocation.devices or ()) if this_node is not None else 0)
    if not here:
        raise UserError(
            "Slurm's environment does not say how many GPUs a node has (no SLURM_GPUS_PER_NODE, SLURM_GPUS_ON_NODE). "
            "Give --gpus-per-node, which on CPUs is the number of processes per node."
        )
    if num_nodes > 1:
        warnings.append(f"Slurm shows {here} GPUs on this node; the other {num_nodes - 1} nodes are taken to be alike.")
    return here
