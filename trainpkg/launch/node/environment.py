"""The environment of the fork server and of each rank, as values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainpkg.launch import network
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.plan import LaunchPlan, rank_environment
from trainpkg.launch.spec import Spec


def for_imports(spec: Spec, facts: NodeFacts, env: Mapping[str, str]) -> dict[str, str]:
    """What stands before torch is imported: it reads its thread numbers then and never again."""
    threads = num_threads(spec, facts, env)
    base = dict(env) | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} | spec.env
    if spec.devices is not None and facts.gpus:
        base["CUDA_VISIBLE_DEVICES"] = ",".join(facts.gpus)
    return base


def num_threads(spec: Spec, facts: NodeFacts, env: Mapping[str, str]) -> int:
    """CPUs of this process over the ranks that share them; never more than OMP_NUM_THREADS says.

    Where Slurm binds no task to CPUs, the process may use all of the node's; what was asked of Slurm is the share then.
    Snakemake exports its `threads` as OMP_NUM_THREADS, which is meant for all ranks of the node together, so the
    variable is an upper bound; `launch.env` has the last word.
    """
    sharing = max(1, facts.num_ranks) * (spec.num_nodes if spec.where == "local" else 1)
    num_cpus = min(facts.num_cpus, spec.cpus_per_task) if spec.where == "slurm" else facts.num_cpus
    share = max(1, num_cpus // sharing)
    given = env.get("OMP_NUM_THREADS", "")
    return min(share, int(given)) if given.isdigit() and int(given) > 0 else share


def for_rank(
    spec: Spec, spec_path: Path, plan: LaunchPlan, index: int, local_rank: int, device: str, env: Mapping[str, str]
) -> dict[str, str | None]:
    """What a rank's environment has beyond the node's; None removes a variable."""
    backend = spec.dist_backend if spec.dist_backend != "auto" else "nccl" if device == "cuda" else "gloo"
    own = plan.master_addr if index == 0 else network.source_address_towards(plan.master_addr, plan.master_port)
    changes: dict[str, str | None] = {}
    changes |= network.interface_environment(own or "", env)
    changes |= rank_environment(plan, index, local_rank)
    changes |= {
        "TRAINPKG_SPEC": os.path.abspath(spec_path),  # noqa: PTH100  # no resolving: a link may be the shared name
        "TRAINPKG_GENERATION": str(plan.generation),
        "TRAINPKG_HOST": plan.nodes[index].host,
        "TRAINPKG_DEVICE": device,
        "TRAINPKG_DIST_BACKEND": backend,
        "TRAINPKG_LISTEN_FD": None,
    }
    return changes
