"""`trainpkg train` as the tasks of a srun that somebody else wrote, on two nodes of a real Slurm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT
from tests.distributed.guests import write_config

pytestmark = pytest.mark.timeout(240)


def test_tasks_of_srun_train_and_what_they_lack_is_named(lab: Lab, shared_dir: Path) -> None:
    config = write_config(shared_dir, init_timeout_s=60.0)
    train = f"srun --ntasks-per-node=2 {sys.executable} -m trainpkg train --config {config} --run digits"
    hosts = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    script = f"""export PYTHONPATH={CHECKOUT} OMP_NUM_THREADS=1
{train} > {shared_dir}/nowhere 2>&1
echo $? > {shared_dir}/status
export MASTER_ADDR={hosts} MASTER_PORT=29500
{train} > {shared_dir}/out 2>&1
echo $? >> {shared_dir}/status
"""
    job = lab.sbatch(script, "--nodes=2", "--ntasks-per-node=2", f"--output={shared_dir}/log", cwd=shared_dir)
    lab.wait_job(job, timeout=200)
    told = "\n".join((shared_dir / name).read_text() for name in ("log", "nowhere", "out"))
    assert (shared_dir / "status").read_text().split() == ["2", "0"], told
    nowhere = (shared_dir / "nowhere").read_text()
    assert "MASTER_ADDR and MASTER_PORT not set, and 4 ranks must meet" in nowhere and hosts in nowhere, told
    assert "rank 3 of 4, local rank 1 of 2, as srun says (SLURM_PROCID=3, " in (shared_dir / "out").read_text(), told
    run_dir = shared_dir / "results/runs/digits"
    result = json.loads((run_dir / "train.json").read_text())
    assert (result["world_size"], result["hosts"], result["gpus_per_node"]) == (4, ["n1", "n2"], [2, 2])
    assert not (run_dir / "lock").exists()
