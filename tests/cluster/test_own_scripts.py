"""Scripts that ask Slurm who they are: true where ranks are its tasks, hidden where one task starts several ranks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT
from tests.cluster.test_launch import TWO, SlurmLaunch

pytestmark = pytest.mark.timeout(240)
ASKS_SUBMITIT = """
import json, os, pathlib, sys
import submitit
it = submitit.JobEnvironment()
told = [os.environ["RANK"], it.job_id, it.num_tasks, it.num_nodes, it.node, it.local_rank, list(it.hostnames)]
pathlib.Path(sys.argv[1], f"rank-{it.global_rank}.json").write_text(json.dumps(told))
"""
ASKS_SLURM = """
import json, os, pathlib, sys
told = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
pathlib.Path(sys.argv[1], f"rank-{os.environ['RANK']}.json").write_text(json.dumps(told))
"""


def told(lab: Lab, folder: Path, script: str, **keys: Any) -> tuple[SlurmLaunch, list[Any]]:
    """What the script's four ranks on two nodes have written."""
    (folder / "asks.py").write_text(script)
    outputs = [f"{{run_dir}}/rank-{rank}.json" for rank in range(4)]
    entry = {"script": str(folder / "asks.py"), "args": ["{run_dir}"], "outputs": outputs}
    job = SlurmLaunch(lab, folder, TWO | keys, "--nodes=2", more={"entry": entry}, spec={"entry": "none"})
    assert job.status() == 0, job.output
    return job, [json.loads((folder / "run" / f"rank-{rank}.json").read_text()) for rank in range(4)]


def test_submitit_knows_the_ranks_that_are_tasks(lab: Lab, shared_dir: Path) -> None:
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("submitit is not installed")
    job, found = told(lab, shared_dir, ASKS_SUBMITIT, backend="srun", env={"SUBMITIT_EXECUTOR": "slurm"})
    hosts = ["n1", "n2"]
    assert found == [[str(rank), str(job.job), 4, 2, rank // 2, rank % 2, hosts] for rank in range(4)]


def test_a_script_is_not_told_that_it_is_the_task_of_its_node(lab: Lab, shared_dir: Path) -> None:
    """Lightning takes SLURM_NTASKS for the world and SLURM_PROCID for the rank wherever it finds them."""
    job, found = told(lab, shared_dir, ASKS_SLURM)
    for rank, variables in enumerate(found):
        assert not {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_ID"} & variables.keys()
        assert (variables["SLURM_JOB_ID"], variables["SLURM_NODEID"]) == (str(job.job), str(rank // 2))


@pytest.mark.parametrize("name", ["ddp", "lightning"])
def test_a_training_script_spans_nodes(lab: Lab, shared_dir: Path, name: str) -> None:
    """One that any launcher starts, and one that looks for its ranks in Slurm's variables, and with mpi4py in MPI."""
    if name == "lightning" and importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    recipe = yaml.safe_load((CHECKOUT / f"config/recipes/script_{name}.yaml").read_text())
    launch = TWO | {"gpus_per_node": 1, "start_timeout_s": 120}
    job = SlurmLaunch(
        lab, shared_dir, launch, "--nodes=2", more={"entry": recipe["entry"]}, spec={"entry": "none"}, HOME="/root"
    )
    assert job.status() == 0, job.output
    told = json.loads(job.out.read_text())
    assert (told["status"], told["world_size"]) == ("finished", 2)
    assert all(size > 0 for size in told["output_bytes"].values()) and told["output_bytes"]
    plan = json.loads((shared_dir / "run/launch/1/0/plan.json").read_text())
    assert [node["host"] for node in plan["nodes"]] == ["n1", "n2"]
    records = [json.loads(line) for line in (shared_dir / "run/metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 24, "each of two ranks has half of the data"
    assert records[-1]["loss"] < records[0]["loss"] / 2
    job.nothing_left()
