"""The workflow as users start it, on a real Slurm of three nodes."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.project import Project

SHAPES = """
run     recipe  launch.nodes  launch.gpus_per_node  strategy
pair    digits  1             2                     ddp
fsdp    gpt     2             2                     fsdp
three   digits  3             1                     ddp
"""
WORLD_SIZES = {"pair": 2, "fsdp": 4, "three": 3}


@pytest.mark.timeout(600)
def test_smoke_test_then_everything_and_again(lab: Lab, shared_dir: Path) -> None:
    """A repeated smoke test retrains nothing, and a changed learning rate starts its run anew."""
    project = Project(lab, shared_dir, SHAPES)
    project.snakemake("smoke_test")
    smoke = sorted(path.stem for path in (shared_dir / "results/smoke").glob("*.json"))
    assert smoke == [f"{shape}-cpu-{strategy}-spawn" for shape, strategy in
                     [("1x2", "ddp"), ("2x1", "ddp"), ("2x2", "fsdp")]]  # fmt: skip
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
    first = project.json("runs/pair/train.json")
    project.snakemake(f"results/smoke/{smoke[0]}.json", "--force")
    again = project.snakemake("-n")
    assert "Nothing to be done" in again.stdout + again.stderr
    head, pair, *others = SHAPES.strip().splitlines()
    project.write_sheet("\n".join([f"{head} optim.lr", f"{pair} 1e-3", *(f"{line} -" for line in others)]))
    project.snakemake("results/runs/pair/train.json")
    assert project.json("runs/pair/train.json")["fingerprint"] != first["fingerprint"]
    assert steps_of(project, "pair")[0] == (1, 5), "from step 0, as a first attempt"
    assert project.json(f"runs/.old/pair.{first['fingerprint']}/train.json") == first
    assert project.table()["pair"]["optim.lr"] == "0.001"


# Short runs whose smoke tests are taken for granted: the test above has run them.

ONE = "run recipe launch.nodes launch.gpus_per_node\none digits 1 1\n"
TRAIN_LONG = "results/runs/long/train.json"
LONG = "run recipe launch.nodes launch.gpus_per_node train.max_steps checkpoint.every_steps\nlong digits 2 2 400 25\n"


def log_of(project: Project, run: str, attempt: int = 1) -> str:
    paths = sorted(project.run_dir(run).glob(f"launch/{attempt}/0/node-*.log"))
    return "".join(path.read_text() for path in paths)


def wait_for_checkpoint(project: Project, run: str) -> None:
    latest = project.run_dir(run) / "checkpoints/latest"
    project.lab.wait_until(latest.exists, f"a checkpoint of {run}", timeout=120)


def steps_of(project: Project, run: str) -> list[tuple[int, int]]:
    """(attempt, step) of each training record."""
    lines = (project.run_dir(run) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [(record["attempt"], record["step"]) for record in records if record["kind"] == "train"]


@pytest.mark.failure("F108")
@pytest.mark.timeout(300)
def test_a_killed_rank_ends_the_job_in_seconds_and_the_retry_resumes(lab: Lab, shared_dir: Path) -> None:
    project = Project(lab, shared_dir, LONG)
    project.skip_smoke()
    snakemake = project.start(TRAIN_LONG)
    wait_for_checkpoint(project, "long")
    found = re.search(r"rank 3 is process (\d+)", log_of(project, "long"))
    assert found, log_of(project, "long")
    lab.kill("n2", int(found[1]), signal.SIGKILL)
    lab.wait_until(lambda: not lab.processes(r"trainpkg (node|train)|launch\.zygote"), "all ranks gone", timeout=5)
    assert snakemake.wait(240) == 0, project.logs()
    verdict = project.json("runs/long/launch/1/attempt.json")
    assert verdict["verdict"] == "failed"
    failure = project.json("runs/long/launch/1/0/failure.json")
    assert (failure["rank"], failure["host"], failure["signal"]) == (3, "n2", int(signal.SIGKILL))
    steps = steps_of(project, "long")
    first_of_second = min(step for attempt, step in steps if attempt == 2)
    assert first_of_second > 25, "resumed from a checkpoint, not from step 0"
    assert project.table()["long"]["status"] == "finished"
    assert project.json("runs/long/train.json")["steps"] == 400


@pytest.mark.timeout(300)
def test_a_killed_snakemake_s_run_is_found_and_never_trained_twice(lab: Lab, shared_dir: Path) -> None:
    project = Project(lab, shared_dir, LONG)
    project.skip_smoke()
    first = project.start(TRAIN_LONG)
    wait_for_checkpoint(project, "long")
    first.kill()
    first.wait(10)
    [job] = lab.run(["squeue", "--noheader", "--format=%i"]).stdout.split()
    lab.run(["scontrol", "suspend", job])  # it lives, and cannot end before the second job has looked
    project.snakemake("--unlock")
    second = project.snakemake(TRAIN_LONG, "--retries", "0", status=1)
    lab.run(["scontrol", "resume", job])
    assert f"Slurm job {job}" in second.stdout + second.stderr + project.logs()
    assert lab.wait_job(job, timeout=120)["JobState"] == "COMPLETED", "the living job was left alone"
    assert "Nothing to be done" in project.snakemake(TRAIN_LONG).stderr
    assert {attempt for attempt, _ in steps_of(project, "long")} == {1}


@pytest.mark.timeout(300)
def test_submit_and_walk_away(lab: Lab, shared_dir: Path) -> None:
    """Snakemake as a small job of its own, as README shows."""
    project = Project(lab, shared_dir, ONE)
    project.skip_smoke()
    command = " ".join(project.command("results/runs/one/train.json"))
    job = lab.sbatch(command, "--job-name=snakemake", "--mem=1G", "--open-mode=append", "--output=out", cwd=shared_dir)
    assert lab.wait_job(job, timeout=200)["JobState"] == "COMPLETED", (shared_dir / "out").read_text() + project.logs()
    assert project.table()["one"]["status"] == "finished"


@pytest.mark.timeout(300)
def test_an_uneven_allocation_has_the_right_ranks(lab: Lab, shared_dir: Path) -> None:
    """A total of 4 GPUs over two nodes comes as 3 + 1: offsets follow what Slurm granted each node."""
    config = "launch: {device: cpu}\nslurm: {cpus_per_task: 2}\n"
    Project(lab, shared_dir, "run recipe launch.nodes\nuneven digits 2\n", config=config)
    launch = f"{sys.executable} -m trainpkg launch train --run uneven --out results/runs/uneven/train.json"
    shape = ["--nodes=2", "--gpus=4", "--cpus-per-task=2", "--ntasks-per-node=1"]
    job = lab.sbatch(launch, *shape, "--output=out", cwd=shared_dir)
    assert lab.wait_job(job, timeout=120)["JobState"] == "COMPLETED", (shared_dir / "out").read_text()
    plan = json.loads((shared_dir / "results/runs/uneven/launch/1/0/plan.json").read_text())
    assert [(node["rank_offset"], node["num_ranks"]) for node in plan["nodes"]] == [(0, 3), (3, 1)]
    result = json.loads((shared_dir / "results/runs/uneven/train.json").read_text())
    assert result["world_size"] == 4
