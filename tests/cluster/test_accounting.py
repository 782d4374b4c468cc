"""Slurm's own accounting: what sacct says of jobs comes into the table of attempts, life by life."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.accounting import AccountedLab, missing
from tests.cluster.lab import Lab
from tests.cluster.project import QUICK, SNAKEMAKE
from trainpkg.tables.rows.accounting import Life, ask_sacct, life_at, parse

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(300)]

USE_MEMORY = "import time; kept = bytearray(200_000_000); time.sleep(4)"


@pytest.fixture(scope="module")
def accounted() -> Iterator[AccountedLab]:
    with AccountedLab(num_nodes=1, gpus_per_node=0) as lab:
        yield lab


def lives(lab: Lab, *jobs: str) -> dict[str, list[Life]]:
    """What `ask_sacct` finds on the lab's submit host."""
    code = f"from trainpkg.tables.rows.accounting import ask_sacct; print(ask_sacct({list(jobs)!r}), end='')"
    done = lab.run([sys.executable, "-c", code], env={"PYTHONPATH": str(Path(__file__).parents[2])})
    return parse(done.stdout)


def test_state_time_and_memory_of_each_life(accounted: AccountedLab) -> None:
    """A job that fails, and one that is put back into the queue while it uses memory."""
    shared = accounted.shared_dir
    failed = accounted.sbatch("exit 3", cwd=shared)
    use = f"srun {sys.executable} -c '{USE_MEMORY}'"
    again = accounted.sbatch(f"date +%s >> starts; {use}; [ ${{SLURM_RESTART_COUNT:-0}} = 1 ] || sleep 100", cwd=shared)
    starts = shared / "starts"
    accounted.wait_until(starts.exists, "the job's start")
    time.sleep(6)  # srun has ended, and its memory is known
    accounted.run(["scontrol", "requeue", again])
    accounted.wait_job(again, "COMPLETED", timeout=60)
    accounted.wait_until(lambda: lives(accounted, again)[again][-1].state == "COMPLETED", "the end in the database")
    found = lives(accounted, failed, again)
    assert [life.state for life in found[failed]] == ["FAILED"]
    assert [life.state for life in found[again]] == ["REQUEUED", "COMPLETED"]
    for life, started in zip(found[again], starts.read_text().split(), strict=True):
        assert life_at(found[again], float(started)) == life
        assert life.elapsed_s is not None and life.elapsed_s >= 4
        assert life.max_rss_mb is not None and 200 < life.max_rss_mb < 400


def test_the_table_of_attempts_shows_it(accounted: AccountedLab) -> None:
    """`summarise` on the submit host asks sacct once, and joins what it says to the launch of that time."""
    folder = accounted.shared_dir / "project"
    (folder / "results/runs/a/launch/1").mkdir(parents=True)
    job = accounted.sbatch("sleep 2", cwd=accounted.shared_dir)
    accounted.wait_job(job, "COMPLETED")
    accounted.wait_until(lambda: lives(accounted, job)[job][0].state == "COMPLETED", "the end in the database")
    start = lives(accounted, job)[job][0].start_s + 1
    attempt = {"slurm_job_id": job, "start": start, "end": start + 1, "verdict": "failed", "status": 1}
    (folder / "results/runs/a/launch/1/attempt.json").write_text(json.dumps(attempt))
    (folder / "runs.tsv").write_text("run\trecipe\na\tr\n")
    work = "task: images\nmodel: {name: conv}\ndata: {name: digits}\ntrain: {max_steps: 40, global_batch: 64}\n"
    (folder / "r.yaml").write_text(work)
    config = {"results_dir": str(folder / "results"), "sheet": str(folder / "runs.tsv"), "recipes": str(folder)}
    command = [sys.executable, "-m", "trainpkg", "summarise", "--config-json", json.dumps(config)]
    accounted.run(command, env={"PYTHONPATH": str(Path(__file__).parents[2])}, timeout=120)
    its = next(csv.DictReader((folder / "results/tables/attempts.csv").read_text().splitlines()))
    assert its["sacct_state"] == "COMPLETED"
    assert int(its["sacct_elapsed_s"]) >= 2


SNAKEFILE = """
rule all:
    input: "a.txt"
rule a:
    output: "a.txt"
    resources: mem_mb=500, runtime=5, slurm_partition="main"
    shell: "date > {output}"
"""


def test_the_executor_follows_a_job_by_sacct(accounted: AccountedLab) -> None:
    """Its other way than squeue, which needs a database that answers."""
    folder = accounted.shared_dir / "followed"
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE)
    command = [*SNAKEMAKE, "--executor", "slurm", "--jobs", "1", *QUICK]
    done = accounted.run([*command, "--slurm-status-command", "sacct"], cwd=folder, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert (folder / "a.txt").exists()


def test_without_accounting_nothing_is_said_and_nothing_fails(lab: Lab) -> None:
    """The binary is there, the database is not: the usual case of small clusters."""
    job = lab.sbatch("true")
    lab.wait_job(job, "COMPLETED")
    assert lives(lab, job) == {}


def test_without_slurm_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PATH", "/nowhere")
    assert ask_sacct(["1"]) == ""
