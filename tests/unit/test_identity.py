"""Which rank a process is under torchrun, MPI, srun and their nestings; every mixture that disagrees is refused."""

from __future__ import annotations

import pytest

from trainpkg.errors import UserError
from trainpkg.launch.start.identity import Identity, identify
from trainpkg.launch.start.meeting import rendezvous


def torchrun(rank: int = 5, world: int = 8, local: int = 1, here: int = 4, **more: str) -> dict[str, str]:
    """As torch 2.13's agent sets it."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(here),
        "GROUP_RANK": str(rank // here), "GROUP_WORLD_SIZE": str(-(-world // here)), "ROLE_RANK": str(rank),
        "MASTER_ADDR": "n1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
    } | more  # fmt: skip


def by_hand(**values: int) -> dict[str, str]:
    return {name.upper(): str(value) for name, value in values.items()}


def srun(task: int = 3, tasks: int = 4, local: int = 1, per_node: str = "2(x2)", node: int = 1) -> dict[str, str]:
    """As srun sets it for one task."""
    return {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(task), "SLURM_LOCALID": str(local),
        "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_NTASKS": str(tasks), "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": per_node,
    }  # fmt: skip


def per_node(node: int = 1, nodes: int = 2) -> dict[str, str]:
    """srun with one task per node."""
    return srun(node, nodes, 0, f"1(x{nodes})", node)


def openmpi(rank: int = 3, size: int = 4, local: int = 1, here: int = 2) -> dict[str, str]:
    words = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local, "LOCAL_SIZE": here, "NODE_RANK": local}
    return {f"OMPI_COMM_WORLD_{word}": str(value) for word, value in words.items()} | {"PMIX_RANK": str(rank)}


HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "8"}
DAEMON = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}


@pytest.mark.failure("F051")
@pytest.mark.parametrize(
    ("env", "launcher", "place", "node", "nodes"),
    [
        (torchrun(), "torchrun", (5, 8, 1, 4), 1, 2),
        (by_hand(rank=5, world_size=8, local_rank=1, local_world_size=4), "environment", (5, 8, 1, 4), None, None),
        (openmpi(), "openmpi", (3, 4, 1, 2), None, None),
        (HYDRA, "pmi", (3, 4, 1, 2), None, None),
        ({f"MV2_COMM_WORLD_{k}": v for k, v in zip(("RANK", "SIZE", "LOCAL_RANK"), "341", strict=True)}, "mvapich2",
         (3, 4, 1, None), None, None),
        (srun(), "slurm", (3, 4, 1, 2), 1, 2),
        (srun(2, 3, 0, "2,1"), "slurm", (2, 3, 0, 1), 1, 2),  # uneven: the node's own count
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2"}, "slurm", (1, 2, 1, None), None, None),
        ({}, "alone", (0, 1, 0, 1), 0, 1),
        (BATCH | {"SLURM_NTASKS": "1"}, "alone", (0, 1, 0, 1), 0, 1),
        (srun(0, 1, 0, "1", 0), "slurm", (0, 1, 0, 1), 0, 2),  # a shell by srun --pty
        # nested rightly
        (torchrun() | per_node(), "torchrun", (5, 8, 1, 4), 1, 2),
        (torchrun(1) | per_node(), "torchrun", (1, 8, 1, 4), 0, 2),  # c10d counts nodes in another order
        (torchrun() | per_node(0, 1), "torchrun", (5, 8, 1, 4), 1, 2),  # one srun per node
        (torchrun(2, 4, 2, 4) | BATCH, "torchrun", (2, 4, 2, 4), 0, 1),  # in the batch script, one node
        (torchrun() | openmpi(1, 2, 0, 1), "torchrun", (5, 8, 1, 4), 1, 2),
        (openmpi() | DAEMON, "openmpi", (3, 4, 1, 2), None, None),
        (HYDRA | DAEMON | BATCH, "pmi", (3, 4, 1, 2), None, None),
        (by_hand(rank=5, world_size=8, local_rank=1, local_world_size=4) | per_node(), "environment", (5, 8, 1, 4),
         None, None),
        # the same rank said twice, and what one leaves open filled in by the other
        ({"RANK": "3", "WORLD_SIZE": "4"} | srun(), "environment", (3, 4, 1, 2), 1, 2),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"} | srun(), "pmi", (3, 4, 1, 2), 1, 2),
        ({"WORLD_SIZE": "4"} | srun(), "slurm", (3, 4, 1, 2), 1, 2),
        ({"RANK": "3", "WORLD_SIZE": "4"} | openmpi(), "environment", (3, 4, 1, 2), None, None),
    ],
)  # fmt: skip
def test_who_this_is(env: dict[str, str], launcher: str, place: tuple[int, ...], node: int, nodes: int) -> None:
    found = identify(env)
    assert found.launcher == launcher
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == place
    assert (found.node_rank, found.num_nodes) == (node, nodes)
    assert f"rank {found.rank} of {found.world_size}" in found.describe()


@pytest.mark.failure("F052")
@pytest.mark.failure("F033")
@pytest.mark.parametrize(
    ("env", "words"),
    [
        # one exported for all: every rank would be rank 0
        ({"RANK": "0", "WORLD_SIZE": "4"} | srun(), ["RANK=0", "SLURM_PROCID=3"]),
        ({"RANK": "0", "WORLD_SIZE": "4"} | openmpi(), ["RANK=0", "OMPI_COMM_WORLD_RANK=3"]),
        ({"WORLD_SIZE": "2"} | srun(), ["WORLD_SIZE=2", "SLURM_STEP_NUM_TASKS=4"]),
        ({"LOCAL_RANK": "3"} | srun(), ["LOCAL_RANK=3", "SLURM_LOCALID=1"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"} | srun(1, 4, 1, "2(x2)", 0), ["PMI_RANK=0", "SLURM_PROCID=1"]),
        # nested wrongly
        (torchrun(1, 4, 1, 4) | per_node(), ["1 node(s)", "started by 2 tasks", "WORLD_SIZE=4", "--nnodes"]),
        (torchrun() | srun(1, 2, 1, "2,0", 0), ["SLURM_LOCALID=1", "more than once", "--ntasks-per-node=1"]),
        (torchrun() | srun(2, 4, 0), ["2 node(s)", "4 tasks"]),
        (by_hand(rank=1, world_size=8, local_rank=1, local_world_size=4) | per_node(), ["node 0", "srun it is 1"]),
        (openmpi() | srun(1, 8, 1, "8,0", 0), ["SLURM_LOCALID=1", "once per node"]),
        # too little, or impossible
        ({"RANK": "3"}, ["RANK=3", "WORLD_SIZE not set"]),
        ({"WORLD_SIZE": "8"}, ["WORLD_SIZE=8", "RANK not set"]),
        ({"RANK": "3", "WORLD_SIZE": "4"}, ["no LOCAL_RANK"]),
        (torchrun(5, 8, 5, 4), ["LOCAL_RANK=5", "LOCAL_WORLD_SIZE=4"]),
        (torchrun(8, 8), ["RANK=8", "WORLD_SIZE=8"]),
        (torchrun(RANK=" 5"), ["RANK is ' 5'"]),
        (torchrun(LOCAL_RANK="-1"), ["LOCAL_RANK is '-1'"]),
        (openmpi(3, 4, 1, 8), ["OMPI_COMM_WORLD_LOCAL_SIZE=8", "OMPI_COMM_WORLD_SIZE=4"]),
        (BATCH, ["SLURM_NTASKS is 8", "no SLURM_STEP_ID", "srun in front"]),
    ],
)
def test_mixtures_are_refused_with_both_values(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        identify(env)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (srun(), ["MASTER_ADDR and MASTER_PORT not set", "4 ranks", "scontrol show hostnames"]),
        (openmpi() | {"MASTER_ADDR": "n1"}, ["MASTER_PORT not set", "-x MASTER_ADDR=HOST"]),
        (HYDRA, ["-genv MASTER_ADDR HOST"]),
        pytest.param(torchrun(MASTER_ADDR=" 10.0.5.4"), ["' 10.0.5.4'"], marks=pytest.mark.failure("F012")),
        pytest.param(torchrun(MASTER_PORT="29500 "), ["'29500 '"], marks=pytest.mark.failure("F012")),
        pytest.param(
            torchrun(MASTER_ADDR="localhost"), ["'localhost' for 2 nodes"], marks=pytest.mark.failure("F001")
        ),
        pytest.param(srun() | {"MASTER_ADDR": "127.0.1.1", "MASTER_PORT": "1"}, ["127.0.1.1", "2 nodes"],
                     marks=pytest.mark.failure("F001")),
    ],
)  # fmt: skip
def test_where_to_meet_is_checked(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        rendezvous(env, identify(env))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_where_to_meet() -> None:
    assert rendezvous(torchrun(), identify(torchrun())) == ("n1", 29500)
    assert rendezvous({}, Identity("alone", 0, 1, 0, 1)) is None
    one_node = torchrun(2, 4, 2, 4, MASTER_ADDR="localhost")
    assert identify(one_node).one_node and rendezvous(one_node, identify(one_node)) == ("localhost", 29500)
