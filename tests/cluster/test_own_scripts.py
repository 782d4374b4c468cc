"""Scripts that ask Slurm who they are: true where ranks are its tasks, hidden where one task starts several ranks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
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
        assert not {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"} & variables.keys()
        assert (variables["SLURM_JOB_ID"], variables["SLURM_NODEID"]) == (str(job.job), str(rank // 2))
