"""Which rank is this process, by the variables of whoever started it: torchrun, an MPI, srun, or a person's script.

Pure, of the standard library, and without an opinion on what to do next. Launchers nest (torchrun inside the one task
that srun starts per node, mpirun through Slurm's daemons), so the innermost one that tells a whole story is taken, and
each one around it must fit: the same rank of the same size, or one task per node. Anything else is a mixture, in which
two processes can be the same rank; it is refused with both values.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from trainpkg.errors import UserError
from trainpkg.launch.slurm.grammar import expand_counts, parse_int

MAX_RANKS = 2**24
_NOT_A_STEP = frozenset({"4294967290", "4294967291"})  # salloc's shell and the batch script


@dataclass(frozen=True)
class Identity:
    """One process among all. `local_world_size`, `node_rank` and `num_nodes` are None where nobody told.

    `launcher` is torchrun, environment (the same variables, set by hand), openmpi, mvapich2, pmi, slurm or alone;
    `told` has the variables that were read, as `RANK=3`.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None
    told: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for the log."""
        if self.launcher == "alone":
            return "rank 0 of 1: no launcher's variables are set"
        here = "" if self.local_world_size is None else f" of {self.local_world_size}"
        place = f"rank {self.rank} of {self.world_size}, local rank {self.local_rank}{here}"
        return f"{place}, as {LAUNCHERS[self.launcher]} says ({', '.join(self.told)})"

    @property
    def one_node(self) -> bool:
        """Whether all ranks are known to be on this node."""
        return self.num_nodes == 1 or self.local_world_size == self.world_size


LAUNCHERS = {
    "torchrun": "torchrun",
    "environment": "the environment",
    "openmpi": "Open MPI's mpirun",
    "mvapich2": "MVAPICH2",
    "pmi": "PMI (MPICH, Intel MPI, Cray, srun --mpi=pmi2)",
    "slurm": "srun",
    "mpi": "MPI",  # asked through mpi4py, where the variables do not say all (see mpi.py)
}
_FIELDS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
# Per launcher, in the order of _FIELDS, the names that say it; from the innermost launcher to the outermost.
_NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "torchrun": (
        ("RANK",),
        ("WORLD_SIZE",),
        ("LOCAL_RANK",),
        ("LOCAL_WORLD_SIZE",),
        ("GROUP_RANK", "NODE_RANK"),
        ("GROUP_WORLD_SIZE", "NUM_NODES", "NNODES"),
    ),
    "openmpi": tuple((f"OMPI_COMM_WORLD_{word}",) for word in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "mvapich2": tuple((f"MV2_COMM_WORLD_{word}",) for word in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "pmi": (
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    ),
    "slurm": (
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        (),
        ("SLURM_NODEID",),
        ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    ),
}


@dataclass(frozen=True)
class _Claim:
    """What one launcher's variables say; `names` has the variable of each field that is known."""

    launcher: str
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return self.rank is not None and self.world_size is not None

    @property
    def who(self) -> str:
        return LAUNCHERS[self.launcher]

    def told(self, *fields: str) -> tuple[str, ...]:
        return tuple(f"{self.names[name]}={getattr(self, name)}" for name in fields or _FIELDS if name in self.names)


def identify(env: Mapping[str, str]) -> Identity:
    """Who this process is.

    Raises:
        UserError: variables that are no numbers, that say too little, or that disagree; both values are named.
    """
    claims = [claim for launcher in _NAMES if (claim := _claim(launcher, env)) is not None]
    whole = [claim for claim in claims if claim.whole]
    if not whole:
        if claims:
            raise UserError(_incomplete(claims[0]))
        _refuse_batch_script(env)
        return Identity("alone", 0, 1, 0, 1, 0, 1)
    for claim in claims:
        _check_range(claim)
    for inner, outer in itertools.pairwise(whole):
        if differing := _difference(inner, outer):
            _check_nesting(inner, outer, differing)
    chosen = whole[0]
    for partial in claims:
        if not partial.whole and (differing := _difference(chosen, partial)):
            raise UserError(_disagreement(chosen, partial, differing, ""))
    known = {name: getattr(chosen, name) for name in _FIELDS}
    told = list(chosen.told())
    for claim in claims:
        if claim is not chosen and not _difference(chosen, claim):  # the same rank: it fills in what is left open
            missing = [name for name in claim.names if known[name] is None]
            known |= {name: getattr(claim, name) for name in missing}
            told += claim.told(*missing) if missing else ()
    if known["local_rank"] is None:
        if known["world_size"] > 1:
            raise UserError(_no_local_rank(chosen))
        known |= {"local_rank": 0, "local_world_size": 1}
    return Identity(chosen.launcher, **known, told=tuple(told))


def _claim(launcher: str, env: Mapping[str, str]) -> _Claim | None:
    names = {
        field: found
        for field, variables in zip(_FIELDS, _NAMES[launcher], strict=False)
        if (found := next((name for name in variables if name in env), None)) is not None
    }
    if launcher == "slurm" and not _is_step(env):
        return None
    if not names.keys() & {"rank", "world_size", "local_rank"}:
        return None
    values = {field: parse_int(env[name], name, high=MAX_RANKS) for field, name in names.items()}
    if launcher == "slurm" and "SLURM_STEP_TASKS_PER_NODE" in env and "node_rank" in values:
        counts = expand_counts(env["SLURM_STEP_TASKS_PER_NODE"], "SLURM_STEP_TASKS_PER_NODE")
        if values["node_rank"] < len(counts):
            values["local_world_size"] = counts[values["node_rank"]]
            names["local_world_size"] = "SLURM_STEP_TASKS_PER_NODE"
    if launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in env:
        launcher = "environment"
    return _Claim(launcher, **values, names=names)


def _is_step(env: Mapping[str, str]) -> bool:
    """Whether srun started this process: a batch script and salloc's shell look like task 0 of all the job's tasks."""
    if "SLURM_STEP_ID" in env:
        return env["SLURM_STEP_ID"] not in _NOT_A_STEP
    return env.get("SLURM_PROCID", "0") != "0"


def _refuse_batch_script(env: Mapping[str, str]) -> None:
    tasks = env.get("SLURM_NTASKS", "1")
    if "SLURM_JOB_ID" in env and tasks.isdigit() and int(tasks) > 1:
        raise UserError(
            f"SLURM_NTASKS is {tasks}, but this process is in the batch script itself (no SLURM_STEP_ID): it was "
            f"started once, and would be one rank where {tasks} are meant. Put srun in front of the command, or "
            "`env -u SLURM_NTASKS` to mean one"
        )


def _check_range(claim: _Claim) -> None:
    """F052: a local rank that is a global one takes a device that is not there."""
    pairs = [("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "num_nodes")]
    for name, size in pairs:
        value, bound = getattr(claim, name), getattr(claim, size)
        if value is not None and bound is not None and value >= bound:
            raise UserError(
                f"{' and '.join(claim.told(name, size))}: ranks count from 0 and stay below the size. "
                "A local rank counts within its node, a rank over all nodes, a node rank counts nodes"
            )
    if (
        claim.local_world_size is not None
        and claim.world_size is not None
        and claim.local_world_size > claim.world_size
    ):
        raise UserError(f"{' and '.join(claim.told('local_world_size', 'world_size'))}: a node has at most all ranks")


def _difference(one: _Claim, other: _Claim) -> list[str]:
    """The fields that both know, of a rank's own, and that differ."""
    fields = ("rank", "world_size", "local_rank", "local_world_size")
    known = [name for name in fields if name in one.names and name in other.names]
    return [name for name in known if getattr(one, name) != getattr(other, name)]


def _check_nesting(inner: _Claim, outer: _Claim, differing: list[str]) -> None:
    """Accept `inner` started by the tasks of `outer`, one per node. Raises UserError naming both."""
    assert inner.world_size is not None and inner.rank is not None
    if outer.world_size == 1:  # one task that started everything here
        return
    by_agent = inner.launcher in ("torchrun", "environment")  # else mpirun's daemons are the tasks around it
    if by_agent and inner.world_size == outer.world_size and inner.local_world_size != 1:
        raise UserError(_disagreement(inner, outer, differing, "both speak of the same ranks"))
    if outer.local_rank:
        why = (
            f"{outer.who} has started {inner.who} more than once on this node, where once per "
            "node is meant (--ntasks-per-node=1)"
        )
        raise UserError(_disagreement(inner, outer, ["rank", "world_size", "local_rank"], why))
    if not by_agent:
        return
    groups = inner.num_nodes
    if groups is None and inner.local_world_size:
        groups = -(-inner.world_size // inner.local_world_size)
    if groups != outer.world_size:
        told = "" if groups is None else f" speaks of {groups} node(s) and"
        why = f"{inner.who}{told} was started by {outer.world_size} tasks (is --nnodes forgotten?)"
        raise UserError(_disagreement(inner, outer, ["rank", "world_size", "num_nodes"], why))
    if inner.launcher == "torchrun":  # its c10d rendezvous may count nodes in another order
        return
    group = inner.node_rank
    if group is None and inner.local_world_size:
        group = inner.rank // inner.local_world_size
    if group != outer.rank:
        why = f"by the environment this is node {group}, by {outer.who} it is {outer.rank}"
        raise UserError(_disagreement(inner, outer, differing, why))


def _disagreement(one: _Claim, other: _Claim, fields: list[str], why: str) -> str:
    mine, its = one.told(*fields), other.told(*fields)
    return (
        f"{', '.join(mine)} ({one.who}) and {', '.join(its)} ({other.who}) disagree on who this "
        f"process is{': ' + why if why else ''}. Start ranks with one of them alone, or unset "
        f"{', '.join(name.partition('=')[0] for name in mine)}, which may be left over"
    )


def _incomplete(claim: _Claim) -> str:
    variables = _NAMES["torchrun" if claim.launcher == "environment" else claim.launcher]
    lacking = [" or ".join(variables[k]) for k, name in enumerate(_FIELDS[:2]) if name not in claim.names]
    return (
        f"{', '.join(claim.told())}, but {' and '.join(lacking)} not set: it is not known which rank of how many this "
        f"process is. Set it, or unset {', '.join(claim.names.values())} to train with one rank"
    )


def _no_local_rank(claim: _Claim) -> str:
    return (
        f"{', '.join(claim.told('rank', 'world_size'))}, but no LOCAL_RANK: which of its node's GPUs the rank takes is "
        "not known. Set LOCAL_RANK and LOCAL_WORLD_SIZE (0 and 1 where each machine has one rank)"
    )
