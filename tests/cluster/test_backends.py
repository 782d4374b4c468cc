"""Every way to start ranks on the real Slurm: one result for all of them, and the same ends when it goes wrong."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT
from tests.cluster.test_launch import TWO, SlurmLaunch

pytestmark = pytest.mark.timeout(240)
# a program that starts ranks in its own way, here the smallest
PROGRAM = (
    "bash -c 'for k in 0 1; do RANK=$(({rank_offset} + k)) LOCAL_RANK=$k WORLD_SIZE={world_size} "
    "LOCAL_WORLD_SIZE={gpus_per_node} {python} {entry} & done; wait'"
)
BACKENDS: dict[str, dict[str, Any]] = {
    "spawn": {},
    "torchrun": {},
    "torchrun-static": {},
    "srun": {},
    "mpi": {"mpi": "pmix"},
    "command": {"command": PROGRAM},
}
TASKS = {
    "srun": {"backend": "srun"},
    "pmix": {"backend": "mpi", "mpi": "pmix"},
    "mpirun": {"backend": "mpi", "mpi": "mpirun"},
}


@pytest.mark.failure("F043")
@pytest.mark.failure("F067")
@pytest.mark.timeout(900)  # most of it imports of torch, one per rank
@pytest.mark.parametrize(
    "backends",
    [
        ("spawn", "torchrun", "torchrun-static", "srun", "mpi"),
        pytest.param(tuple(BACKENDS), marks=pytest.mark.long),  # a command's ranks: distributed/test_own_programs.py
    ],
    ids=["most", "all"],
)
def test_all_backends_train_two_nodes_to_the_same_weights(
    lab: Lab, shared_dir: Path, backends: tuple[str, ...]
) -> None:
    """In one job, one after the other, while another step of it holds every CPU and shares none."""
    lines = [f"cd {CHECKOUT}", "srun --exclusive --cpus-per-task=2 sleep 600 &"]
    for name in backends:
        keys = BACKENDS[name]
        given = {"launch": TWO | {"backend": name} | keys}
        command = [sys.executable, "-m", "tests.distributed.launched", str(shared_dir / name / "run/train.json")]
        lines.append(f"env -i PATH=$PATH SLURM_JOB_ID=$SLURM_JOB_ID {shlex.join([*command, json.dumps(given)])}")
        lines.append(f"echo $? > {shared_dir}/{name}/status")
    job = lab.sbatch(
        "\n".join([*lines, "exit 0"]), f"--output={shared_dir}/out", "--nodes=2", "--ntasks-per-node=1",
        "--cpus-per-task=2", cwd=shared_dir,
    )  # fmt: skip
    lab.wait_job(job, timeout=840)
    output = (shared_dir / "out").read_text()
    first = load_file(shared_dir / "spawn/run/model/model.safetensors")
    for name in backends:
        assert (shared_dir / name / "status").read_text() == "0\n", output
        run = shared_dir / name / "run"
        weights = load_file(run / "model/model.safetensors")
        assert weights.keys() == first.keys()
        assert all(torch.equal(weights[key], first[key]) for key in first), name
        plan = json.loads((run / "launch/1/0/plan.json").read_text())
        assert [(node["host"], node["rank_offset"]) for node in plan["nodes"]] == [("n1", 0), ("n2", 2)]
        for rank in range(4):
            log = (run / f"launch/1/0/rank-{rank}.log").read_text()
            assert f"distributed init (rank {rank} of 4): tcp://{plan['master_addr']}:" in log


@pytest.mark.parametrize("way", TASKS)
@pytest.mark.failure("F046")
@pytest.mark.failure("F049")
@pytest.mark.failure("F058")
@pytest.mark.failure("F090")
def test_ranks_as_tasks_restart_in_place_and_save_on_request(lab: Lab, shared_dir: Path, way: str) -> None:
    """Uneven nodes of a larger job: the killed rank is named, all start again in a new step, a warning saves them."""
    keys = TWO | TASKS[way] | {"gpus_per_node": None, "max_restarts": 1}
    environment = {"TEST_STEPS": "5000", "TEST_BAD": "kill:2:40:0", "TEST_GRANDCHILDREN": "1", "TEST_MARK": "trainpkg"}
    environment |= {"TEST_SHOW": "SLURM_PROCID SLURM_STEP_NUM_TASKS LOCAL_RANK TRAINPKG_HOST"}
    job = SlurmLaunch(lab, shared_dir, keys, "--nodes=3", spec={"gpus_per_node": [1, 3]}, **environment)
    job.wait_for_line("training goes on with step")
    lab.run(["scancel", "--signal=USR2", job.job])
    assert job.status() == 75, job.output
    job.nothing_left()
    assert "rank 2 on node 1 (n2) was killed by SIGKILL at step" in job.output
    folder = shared_dir / "run/launch/1"
    told = json.loads((folder / "0/failure.json").read_text())
    assert (told["rank"], told["host"], told["signal"]) == (2, "n2", 9)
    plans = [json.loads((folder / f"{generation}/plan.json").read_text()) for generation in (0, 1)]
    assert [node["rank_offset"] for node in plans[1]["nodes"]] == [0, 1]
    assert plans[0]["master_port"] != plans[1]["master_port"]
    for rank, (host, local_rank) in enumerate([("n1", 0), ("n2", 0), ("n2", 1), ("n2", 2)]):
        log = (folder / f"1/rank-{rank}.log").read_text()
        assert f"LOCAL_RANK={local_rank}\nTRAINPKG_HOST={host}\n" in log
        assert way == "mpirun" or f"SLURM_PROCID={rank}\nSLURM_STEP_NUM_TASKS=4\n" in log


@pytest.mark.failure("F070")
def test_an_mpi_that_slurm_does_not_reach_is_named(lab: Lab, shared_dir: Path) -> None:
    job = SlurmLaunch(lab, shared_dir, TWO | {"backend": "mpi", "mpi": "pmi2"}, "--nodes=2")
    assert job.status() in (1, 2), job.output
    assert "launch.mpi: pmix" in job.output
    assert "`srun --mpi=list` says " in job.output
    assert "mpi4py loads Open MPI v" in job.output
    job.nothing_left()


@pytest.mark.failure("F035")
@pytest.mark.failure("F059")
@pytest.mark.failure("F061")
@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("--gpus-per-task=1", ["0", "1", "2", "3"]),
        ("--gpu-bind=mask_gpu:12,12,3,3", ["2,3", "2,3", "0,1", "0,1"]),
        ("", ["0,1,2,3"] * 4),
    ],
)
def test_each_task_keeps_the_gpus_that_slurm_grants_it(lab: Lab, shared_dir: Path, option: str, shown: str) -> None:
    keys = {"where": "slurm", "device": "auto", "backend": "srun", "srun_args": option}
    job = SlurmLaunch(lab, shared_dir, keys, "--nodes=1", "--gres=gpu:4", TEST_SHOW="LOCAL_RANK CUDA_VISIBLE_DEVICES")
    assert job.status() == 0, job.output
    for rank in range(4):
        log = (shared_dir / f"run/launch/1/0/rank-{rank}.log").read_text()
        assert log.endswith(f"LOCAL_RANK={rank}\nCUDA_VISIBLE_DEVICES={shown[rank]}\n")


@pytest.mark.parametrize("way", ["srun", "mpirun"])
def test_a_killed_launch_takes_the_ranks_step_with_it(lab: Lab, shared_dir: Path, way: str) -> None:
    environment = {"TEST_STEPS": "5000", "TEST_GRANDCHILDREN": "1", "TEST_MARK": "trainpkg"}
    job = SlurmLaunch(lab, shared_dir, TWO | TASKS[way], "--nodes=2", **environment)
    job.wait_for_line("4 of 4 ranks joined")
    for node, pid, command in lab.processes("tests.distributed.launched"):
        if "env -i" not in command:
            lab.kill(node, pid, signal.SIGKILL)
    assert job.status() == 137
    job.nothing_left(15)
