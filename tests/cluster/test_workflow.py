"""The workflow as users start it, on a real Slurm of three nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.project import Project

SHAPES = """
run     recipe  launch.nodes  launch.gpus_per_node  strategy
one     digits  1             1                     -
pair    digits  1             2                     ddp
ddp     digits  2             2                     ddp
fsdp    gpt     2             2                     fsdp
three   digits  3             1                     ddp
"""
WORLD_SIZES = {"one": 1, "pair": 2, "ddp": 4, "fsdp": 4, "three": 3}


@pytest.mark.timeout(600)
def test_smoke_test_then_everything_and_nothing_twice(lab: Lab, shared_dir: Path) -> None:
    project = Project(lab, shared_dir, SHAPES)
    project.snakemake("smoke_test")
    smoke = sorted(path.stem for path in (shared_dir / "results/smoke").glob("*.json"))
    assert smoke == [f"{shape}-cpu-{strategy}-spawn" for shape, strategy in
                     [("1x1", "single"), ("1x2", "ddp"), ("2x1", "ddp"), ("2x2", "ddp"), ("2x2", "fsdp")]]  # fmt: skip
    project.snakemake()
    table = project.table()
    assert {run: row["status"] for run, row in table.items()} == dict.fromkeys(WORLD_SIZES, "finished")
    assert {run: int(row["world_size"]) for run, row in table.items()} == WORLD_SIZES
    for run, world_size in WORLD_SIZES.items():
        plan = json.loads((project.run_dir(run) / "launch/1/0/plan.json").read_text())
        assert plan["world_size"] == world_size
        assert all(re.fullmatch(r"n[123]", node["host"]) for node in plan["nodes"]), "real nodes, not simulated ones"
        assert plan["master_addr"].startswith("10.77.0.") or len(plan["nodes"]) == 1
        log = (project.run_dir(run) / "launch/1/0/rank-0.log").read_text()
        assert f"distributed init (rank 0 of {world_size}): tcp://" in log
    project.snakemake("smoke_test", "--forceall")
    again = project.snakemake("-n")
    assert "Nothing to be done" in again.stdout + again.stderr, "a repeated smoke test retrains nothing"


@pytest.mark.timeout(300)
def test_an_uneven_allocation_has_the_right_ranks(lab: Lab, shared_dir: Path) -> None:
    """A total of 4 GPUs over two nodes comes as 3 + 1: offsets follow what the nodes report."""
    sheet = "run recipe launch.nodes\nuneven digits 2\n"
    Project(lab, shared_dir, sheet, config="launch: {device: cpu}\nslurm: {cpus_per_task: 2}\n")
    launch = "python -m trainpkg launch train --run uneven --out results/runs/uneven/train.json"
    # torch uses the CPU, as many ranks as Slurm gave GPUs: the fake GPUs cannot compute
    job = lab.sbatch(f"{launch}", "--nodes=2", "--gpus=4", "--cpus-per-task=2", "--ntasks-per-node=1",
                     "--output=out", cwd=shared_dir)  # fmt: skip
    assert lab.wait_job(job, timeout=120)["JobState"] == "COMPLETED", (shared_dir / "out").read_text()
    plan = json.loads((shared_dir / "results/runs/uneven/launch/1/0/plan.json").read_text())
    assert [(node["rank_offset"], node["num_ranks"]) for node in plan["nodes"]] == [(0, 3), (3, 1)]
    result = json.loads((shared_dir / "results/runs/uneven/train.json").read_text())
    assert result["world_size"] == 4
