"""The environment of the fork server and of each rank, as values.

Who has the last word on a variable, from the first to the last: `launch.env`; the node's environment (where jobs are
submitted from, `launch.prologue`); `launch.preset`; the launcher's own defaults. `launch.env_prepend` goes in front of
what comes out. Thread numbers have rules of their own (`threads`).
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainpkg import presets, variables
from trainpkg.launch import facts, network
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.plan import LaunchPlan, rank_environment
from trainpkg.launch.spec import Spec

# what Snakemake sets for the shell of a rule, all of them to the rule's `threads`
SNAKEMAKES_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
MAX_TOLD = 200
OF_EACH_NODE = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")  # each node's own, and shown elsewhere


@dataclass(frozen=True)
class Threads:
    """Threads of each rank of a node, and why so many."""

    count: int
    reason: str


def of_node(spec: Spec, index: int, env: Mapping[str, str]) -> tuple[NodeFacts, dict[str, str]]:
    """The node's facts, with what they say of its environment, and the environment that its ranks begin with."""
    found = facts.gather(spec, index, env)
    base, chosen = for_imports(spec, found, env), threads(spec, found, env)
    node = dataclasses.replace(found, threads=chosen.count, threads_reason=chosen.reason)
    return dataclasses.replace(node, variables=told(spec, base), remarks=remarks(spec, found, env)), base


def for_imports(spec: Spec, node: NodeFacts, env: Mapping[str, str]) -> dict[str, str]:
    """What stands before torch is imported: it reads its thread numbers and its allocator's settings then."""
    count = str(threads(spec, node, env).count)
    base = defaults(spec, node, env) | presets.settings(spec.preset, spec.stage) | dict(env)
    base |= dict.fromkeys(SNAKEMAKES_THREADS if set_by_snakemake(env) else SNAKEMAKES_THREADS[:2], count)
    base |= spec.env
    for name, value in spec.env_prepend.items():
        rest = base.get(name, "")
        in_front = rest == value or rest.startswith(f"{value}:")  # by the shell that started this process
        base[name] = rest if in_front else f"{value}:{rest}" if rest else value
    if spec.devices is not None and node.gpus:
        base["CUDA_VISIBLE_DEVICES"] = ",".join(node.gpus)
    return base


def defaults(spec: Spec, node: NodeFacts, env: Mapping[str, str]) -> dict[str, str]:
    """What everybody wants who has not said otherwise: segments that grow leave less memory in pieces."""
    given = any(name in env or name in spec.env for name in ALLOCATOR)
    return {} if given or node.device != "cuda" else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def set_by_snakemake(env: Mapping[str, str]) -> bool:
    """Whether the thread numbers are a rule's `threads`: nobody else sets all six, two of them long out of use."""
    values = {env.get(name, "") for name in SNAKEMAKES_THREADS}
    return len(values) == 1 and values.pop().isdigit()


def threads(spec: Spec, node: NodeFacts, env: Mapping[str, str]) -> Threads:
    """The CPUs that this process may use over the ranks that share them.

    `launch.env` has the last word. Another OMP_NUM_THREADS counts as given where a rank's share has room for it: more
    is a number for the whole node (the usual `OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK`). What Snakemake sets is its
    `threads`, for all ranks of the rule together, and is divided among them. Where Slurm binds no task to CPUs, a
    process may use all of the node's: what was asked of Slurm is the share then.
    """
    if (own := spec.env.get("OMP_NUM_THREADS", "")).isdigit() and int(own) > 0:
        return Threads(int(own), "launch.env")
    sharing, whose = max(1, node.num_ranks), "rank" if node.num_ranks == 1 else "ranks"
    if spec.simulated and spec.num_nodes > 1:
        sharing, whose = sharing * spec.num_nodes, f"ranks of {spec.num_nodes} simulated nodes"
    num_cpus, which = node.num_cpus, "CPUs of the affinity mask"
    if spec.where == "slurm" and spec.cpus_per_task < num_cpus:
        num_cpus, which = spec.cpus_per_task, "CPUs asked of Slurm"
    text = env.get("OMP_NUM_THREADS", "")
    given = int(text) if text.isascii() and text.isdigit() else 0
    if given and set_by_snakemake(env) and given < num_cpus:
        num_cpus, which = given, "threads of Snakemake's rule"
    share = max(1, num_cpus // sharing)
    reason = f"{num_cpus} {which} / {sharing} {whose}"
    if not given or set_by_snakemake(env):
        return Threads(share, reason)
    if given <= share:
        return Threads(given, f"OMP_NUM_THREADS of the environment; {reason} would be {share}")
    return Threads(share, f"{reason}; OMP_NUM_THREADS={given} of the environment is more than a rank's share")


def told(spec: Spec, base: Mapping[str, str]) -> dict[str, str]:
    """The variables worth showing of what the ranks get, secrets masked: the libraries', and what was set here."""
    ours = {*spec.env, *spec.env_prepend, *presets.settings(spec.preset, spec.stage)}
    names = [name for name in sorted(base) if name.startswith(variables.LIBRARY_PREFIXES) or name in ours]
    return {name: variables.shown(name, base[name]) for name in names[:MAX_TOLD] if name not in OF_EACH_NODE}


def lines(node: NodeFacts) -> list[str]:
    """What the node's log says of all this."""
    return [
        f"node {node.index} is {node.host} {' '.join(node.addresses)}, process {node.pid} of {sys.executable}",
        f"threads per rank: {node.threads} ({node.threads_reason})",
        *(f"environment: {name}={value}" for name, value in node.variables.items()),
        *(f"warning: {remark}" for remark in node.remarks),
    ]


def remarks(spec: Spec, node: NodeFacts, env: Mapping[str, str]) -> list[str]:
    """Sentences on what the node's environment has and should not: old names, misspelt ones, contradictions."""
    found = [
        f"{name} {why}"
        for name in sorted(env)
        if name not in spec.env and (why := variables.remark(name))  # the config's own has been checked with it
    ]
    wanted = presets.settings(spec.preset, spec.stage).get("NCCL_IB_DISABLE")
    has = env.get("NCCL_IB_DISABLE")
    if wanted is not None and has not in (None, wanted) and "NCCL_IB_DISABLE" not in spec.env:
        found.append(
            f"NCCL_IB_DISABLE={has} of the environment wins over launch.preset: {spec.preset}, which means {wanted}; "
            "unset it, or say launch.env.NCCL_IB_DISABLE"
        )
    for name in variables.RANK_COUNTS:
        if env.get(name, "").isdigit() and int(env[name]) != node.num_ranks:
            found.append(f"{name}={env[name]} of the environment is not read: {node.num_ranks} ranks run on this node")
    return found


def for_rank(
    spec: Spec, spec_path: Path, plan: LaunchPlan, index: int, local_rank: int, device: str, env: Mapping[str, str]
) -> dict[str, str | None]:
    """What a rank's environment has beyond the node's; None removes a variable."""
    backend = spec.dist_backend if spec.dist_backend != "auto" else "nccl" if device == "cuda" else "gloo"
    own = plan.master_addr if index == 0 else network.source_address_towards(plan.master_addr, plan.master_port)
    changes: dict[str, str | None] = {}
    changes |= network.interface_environment(own or "", env)
    changes |= rank_environment(plan, index, local_rank)
    changes["TRAINPKG_ADDRESS"] = network.advertised(own or "", env).address
    changes |= {
        "TRAINPKG_SPEC": os.path.abspath(spec_path),  # noqa: PTH100  # no resolving: a link may be the shared name
        "TRAINPKG_GENERATION": str(plan.generation),
        "TRAINPKG_HOST": plan.nodes[index].host,
        "TRAINPKG_DEVICE": device,
        "TRAINPKG_DIST_BACKEND": backend,
        "TRAINPKG_OVERSUBSCRIBE": "1" if spec.oversubscribe else None,
        "TRAINPKG_LISTEN_FD": None,
    }
    return changes
