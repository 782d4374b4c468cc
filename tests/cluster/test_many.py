"""Small runs on the real Slurm: they share jobs, one after the other, and `status` tells where each of them stands."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.cluster.project import Project

RUNS = ("a", "b")
SHEET = "run recipe launch.nodes launch.gpus_per_node slurm.runs_per_job train.max_steps\n" + "".join(
    f"{run} digits 1 1 2 300\n" for run in RUNS
)


def status(project: Project) -> dict[str, dict[str, Any]]:
    """Run: its row of `trainpkg status`, on the submit host."""
    command = [sys.executable, "-m", "trainpkg", "status", "--json"]
    rows = [json.loads(line) for line in project.lab.run(command, cwd=project.path).stdout.splitlines()]
    return {row["run"]: row for row in rows}


@pytest.mark.timeout(400)
def test_runs_share_jobs_in_sequence_and_status_tells_where_they_stand(lab: Lab, shared_dir: Path) -> None:
    project = Project(lab, shared_dir, SHEET)
    project.skip_smoke()
    assert {row["state"] for row in status(project).values()} == {"absent"}
    snakemake = project.start(*(f"results/runs/{run}/train.json" for run in RUNS))
    seen: dict[str, dict[str, Any]] = {}

    def one_trains() -> bool:
        if not any((project.run_dir(run) / "metrics.jsonl").exists() for run in RUNS):
            return False  # `status` is a program to start, and need not be asked yet
        seen.update((run, row) for run, row in status(project).items() if row["state"] == "running" and row["step"])
        return bool(seen)

    lab.wait_until(one_trains, "a run that is said to be running", timeout=120)
    queued = lab.run(["squeue", "--noheader", "--format=%i"]).stdout.split()
    for row in seen.values():
        assert row["job"] in queued and row["job_words"], row
        assert 0 < row["step"] <= row["max_steps"] == 300 and row["loss"] > 0, row
    assert snakemake.wait(240) == 0, project.logs()
    assert {row["state"] for row in status(project).values()} == {"finished"}
    attempts = {run: project.json(f"runs/{run}/launch/1/attempt.json") for run in RUNS}
    assert len({attempt["slurm_job_id"] for attempt in attempts.values()}) == 1, attempts
    spans = sorted((one["start"], one["end"]) for one in attempts.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "one after the other"
