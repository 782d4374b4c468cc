"""Heterogeneous jobs (`sbatch -N1 : -N2 --gres=gpu:4`): several jobs that start together, launched over as one.

Slurm's own variables speak of the first part alone outside of steps; here the parts are put together, in their order,
so that the rest of this package meets one job whose nodes differ. A step over all parts has global node indices.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from trainpkg.errors import UserError
from trainpkg.launch.slurm.ask import split_fields
from trainpkg.launch.slurm.grammar import parse_int

ASK_TIMEOUT_S = 60.0
MAX_PARTS = 128  # Slurm's own limit
_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")
_COUNTS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")

Part = tuple[int, str, int]  # number of the group, job id, number of nodes


def as_one_job(env: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of a heterogeneous job's script as one job's: lists joined, counts added up.

    Inside a step Slurm has done so itself; everywhere else the environment comes back as it is.
    """
    size = parse_int(env["SLURM_HET_SIZE"], "SLURM_HET_SIZE", high=MAX_PARTS) if env.get("SLURM_HET_SIZE") else 1
    if size < 2 or "SLURM_STEP_NODELIST" in env:
        return env
    if "SLURM_JOB_NODELIST" in env:
        _require_all(env, size)
    joined: dict[str, str] = {}
    for name in _LISTS:
        parts = [env.get(f"{name}_HET_GROUP_{k}", "") for k in range(size)]
        if name == "SLURM_NODELIST":  # the old name of the list has no groups of its own
            parts = [env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{k}", "") for k in range(size)]
        joined |= {name: ",".join(parts)} if name in env and all(parts) else {}
    counts = [env.get(f"SLURM_JOB_NUM_NODES_HET_GROUP_{k}", "") for k in range(size)]
    for name in _COUNTS if all(counts) else ():
        total = sum(parse_int(count, f"SLURM_JOB_NUM_NODES_HET_GROUP_{k}") for k, count in enumerate(counts))
        joined |= {name: str(total)} if name in env else {}
    return dict(env) | joined


def _require_all(env: Mapping[str, str], size: int) -> None:
    for k in range(size):
        if f"SLURM_JOB_NODELIST_HET_GROUP_{k}" not in env:
            raise UserError(
                f"SLURM_HET_SIZE is {size}, but SLURM_JOB_NODELIST_HET_GROUP_{k} is not set: one of them is a leftover "
                "of another job. Unset all SLURM_* variables before asking for a job from inside a job."
            )


def whole_job(fields: Mapping[str, str]) -> tuple[dict[str, str], list[Part]]:
    """The fields of `scontrol show job` for all parts together, and the parts; none for an ordinary job."""
    leader = fields.get("HetJobId")
    if leader is None:
        return dict(fields), []
    command = ["scontrol", "show", "job", leader, "--oneliner"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"`{' '.join(command)}` does not answer: {error}") from error
    return merge([split_fields(line) for line in asked.stdout.splitlines()])


def merge(lines: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[Part]]:
    """As `whole_job`, from the fields of each part. CPUs are the fewest of any node's, times all nodes."""
    ordered = sorted((line for line in lines if "HetJobOffset" in line), key=lambda line: int(line["HetJobOffset"]))
    if not ordered:
        raise UserError("Slurm calls this a part of a heterogeneous job, but shows none of its parts")
    parts = [(int(line["HetJobOffset"]), line["JobId"], int(line["NumNodes"])) for line in ordered]
    nodes = sum(number for _, _, number in parts)
    fewest = min(int(line["NumCPUs"]) // int(line["NumNodes"]) for line in ordered)
    together = {"NodeList": ",".join(line["NodeList"] for line in ordered), "NumNodes": str(nodes)}
    return dict(ordered[0]) | together | {"NumCPUs": str(fewest * nodes)}, parts


def parts_for(parts: Sequence[Part], hosts: Sequence[str], job_hosts: Sequence[str], backend: str) -> list[Part]:
    """The parts that a launch on these hosts, the job's first or those of the step we are in, takes whole.

    Raises:
        UserError: they take a part's first nodes only, which srun cannot start on; or the backend is one whose ranks
            srun starts.
    """
    if not parts:
        return []
    sizes = " + ".join(str(number) for _, _, number in parts)
    if backend in ("srun", "mpi"):
        raise UserError(
            f"launch.backend = {backend!r} in a heterogeneous job (parts of {sizes} nodes): its ranks would be of one "
            "part. Use launch.backend: spawn or torchrun, or a job of one part"
        )
    taken, start = [], 0
    for part in parts:
        mine = set(job_hosts[start : start + part[2]])
        start += part[2]
        if mine <= set(hosts):
            taken.append(part)
        elif mine & set(hosts):
            raise UserError(
                f"launch.nodes = {len(hosts)} ends inside part {part[0]} of a heterogeneous job with parts of {sizes} "
                f"nodes: srun starts on whole parts. Set launch.nodes to {sum(p[2] for p in taken) or part[2]} or "
                f"{sum(number for _, _, number in parts)}"
            )
    return taken


def geometry(parts: Sequence[Part]) -> list[str]:
    """Words of srun that start one task on each node of the parts."""
    return [f"--het-group={','.join(str(group) for group, _, _ in parts)}", "--ntasks-per-node=1"]


def variables(parts: Sequence[Part]) -> dict[str, str]:
    """What srun needs of the environment for that; without it, it takes one node of each part."""
    if not parts:
        return {}
    found = {"SLURM_HET_SIZE": str(1 + max(group for group, _, _ in parts))}
    for group, job, number in parts:
        found |= {f"SLURM_JOB_ID_HET_GROUP_{group}": job, f"SLURM_JOB_NUM_NODES_HET_GROUP_{group}": str(number)}
    return found
