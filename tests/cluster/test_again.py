"""Jobs that go on by themselves: near their limit, at a warning, when preempted; and those that must not."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.cluster.project import CONFIG, Project
from tests.cluster.test_launch import TWO, SlurmLaunch
from tests.cluster.test_workflow import steps_of

ONE = {"where": "slurm", "nodes": 1, "gpus_per_node": 1}
OWN = {"requeue": True}
APPEND = ("--requeue", "--open-mode=append")
TRAIN = "results/runs/long/train.json"
LONG = "run recipe launch.nodes launch.gpus_per_node train.max_steps checkpoint.every_steps\nlong digits 1 1 240 50\n"


def attempt_of(folder: Path, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"run/launch/{number}/attempt.json").read_text())
    return found


def warn(lab: Lab, job: str) -> None:
    """What `sbatch --signal=USR2@120` makes Slurm do: to the steps, not to the batch shell that `launch` is in."""
    lab.run(["scancel", "--signal=USR2", job])


def wait_for_restart(lab: Lab, job: str, count: int) -> None:
    lab.wait_until(lambda: lab.job(job)["Restarts"] == str(count), f"restart {count} of job {job}", timeout=120)


def own(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path


def job_of(project: Project) -> str:
    """The Slurm job that trains the project's run."""
    return str(project.json("runs/long/launch/1/attempt.json")["slurm_job_id"])


def wait_for_steps(project: Project) -> None:
    """Until the first attempt has done some."""
    metrics = project.run_dir("long") / "metrics.jsonl"

    def stepped() -> bool:
        return metrics.exists() and bool(steps_of(project, "long"))

    project.lab.wait_until(stepped, "the first steps", timeout=240)


@pytest.mark.failure("F079")
@pytest.mark.failure("F080")
@pytest.mark.failure("F086")
def test_a_warned_job_puts_itself_back_and_is_its_runs_only_writer_all_the_while(lab: Lab, shared_dir: Path) -> None:
    """The signal reaches steps only, the requeue is asked for outside of them, no node is drained by what is left."""
    environment = {"TEST_STEPS": "150", "TEST_PACE": "0.05", "TEST_GRANDCHILDREN": "1", "TEST_MARK": "trainpkg"}
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", *APPEND, more=OWN, **environment)
    bound = SlurmLaunch(lab, own(shared_dir, "bound"), ONE, "--nodes=1", "--no-requeue", more=OWN, **environment)
    for one in (job, bound):
        one.wait_for_line("step 1 of")
        warn(lab, one.job)
    wait_for_restart(lab, job.job, 1)
    job.nothing_left(8)
    second = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", "--output=/dev/null", more=OWN)
    assert lab.wait_job(second.job, timeout=60)["ExitCode"] == "78:0"
    cancelled = SlurmLaunch(lab, own(shared_dir, "cancelled"), ONE, "--nodes=1", *APPEND, more=OWN, **environment)
    cancelled.wait_for_line("step 1 of")
    lab.run(["scancel", cancelled.job])  # SIGTERM to all: the run saves, and the job is not brought back
    assert bound.status() == 75, "Snakemake's retries take over where Slurm may not"
    assert "job may not be requeued" in bound.output.replace(f"job {bound.job}", "job")
    done = lab.wait_job(job.job, timeout=90)
    assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "1"), job.output
    assert [attempt_of(shared_dir, n)["restarts"] for n in (1, 2)] == [0, 1]
    first, last = attempt_of(shared_dir, 1), attempt_of(shared_dir, 2)
    assert (first["verdict"], first["status"], last["verdict"]) == ("again", 75, "finished")
    assert last["step_first"] == first["step_last"] + 1
    assert f"Slurm job {job.job} goes back into the queue" in job.output, "the log of the first life is still there"
    assert "to be run again" in (shared_dir / "run/launch/1/launch.log").read_text()
    assert not (shared_dir / "run/lock").exists()
    assert (lab.job(cancelled.job)["JobState"], lab.job(cancelled.job)["Restarts"]) == ("CANCELLED", "0")
    assert not (shared_dir / "run/launch/3").exists(), "the second copy began nothing"
    assert set(lab.node_states().values()) <= {"idle", "comp"}


@pytest.mark.failure("F108")
@pytest.mark.timeout(900)
def test_one_command_trains_through_two_lives_of_a_job_with_and_without_its_snakemake(
    lab: Lab, shared_dir: Path
) -> None:
    """Two projects side by side; the login node's Snakemake of one of them is killed in the first life."""
    followed = Project(lab, own(shared_dir, "followed"), LONG)
    abandoned = Project(lab, own(shared_dir, "abandoned"), LONG)
    commands = []
    for project in (followed, abandoned):
        project.skip_smoke()
        commands.append(project.start(TRAIN))
    for project in (followed, abandoned):
        wait_for_steps(project)
        if project is abandoned:
            commands[1].kill()
            commands[1].wait(10)
        warn(lab, job_of(project))
    for project in (followed, abandoned):
        wait_for_restart(lab, job_of(project), 1)
    assert followed.ended(commands[0], 450) == 0, followed.logs()
    assert lab.wait_job(job_of(abandoned), timeout=120)["JobState"] == "COMPLETED", abandoned.logs()
    abandoned.snakemake("--unlock")
    assert "Nothing to be done" in abandoned.snakemake(TRAIN).stderr
    lab.run([sys.executable, "-m", "trainpkg", "summarise"], cwd=abandoned.path)
    assert abandoned.table()["long"]["status"] == "finished"
    assert [lives_of(project) for project in (followed, abandoned)] == [2, 2]
    rows = attempts_of(abandoned)
    assert [row["slurm_restarts"] for row in rows] == ["0", "1"]
    assert {row["slurm_job_id"] for row in rows} == {job_of(abandoned)}
    assert [row["verdict"] for row in rows] == ["again", "finished"]


def lives_of(project: Project) -> int:
    """How many lives of one Slurm job the finished run took; asserts that it is whole."""
    result = project.json("runs/long/train.json")
    assert result["steps"] == 240
    assert len(list(project.path.glob(".snakemake/slurm_logs/rule_train/long/*.log"))) == 1, "one Slurm job"
    [log] = project.path.glob("logs/train/long.log")
    assert f"attempt {result['attempt']}; what earlier ones said is in" in log.read_text()
    steps = [step for _, step in steps_of(project, "long")]
    assert sorted(set(steps)) == list(range(5, 241, 5)), "no step is missing"
    return int(result["attempt"])


def attempts_of(project: Project) -> list[dict[str, str]]:
    """The run's rows of results/tables/attempts.csv."""
    with (project.path / "results/tables/attempts.csv").open() as lines:
        return [row for row in csv.DictReader(lines) if row["run"] == "long"]


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_one_command_trains_through_jobs_of_one_minute_with_and_without_its_snakemake(
    lab: Lab, shared_dir: Path
) -> None:
    """Slurm's own limit of a minute, and a run that no machine can train in two: a step takes a quarter of a second."""
    slow = IN_EACH_STEP.format(does="__import__('time').sleep(0.25)")
    (own(shared_dir, "slow") / "sitecustomize.py").write_text(slow)
    config = CONFIG.replace("max_restarts: 0", f"max_restarts: 0, env_prepend: {{PYTHONPATH: {shared_dir}/slow}}")
    config = config.replace('runtime: "20"', 'runtime: "1"')
    followed = Project(lab, own(shared_dir, "followed"), LONG, config)
    abandoned = Project(lab, own(shared_dir, "abandoned"), LONG, config)
    commands = []
    for project in (followed, abandoned):
        project.skip_smoke()
        commands.append(project.start(TRAIN))
    wait_for_steps(abandoned)
    commands[1].kill()
    commands[1].wait(10)
    assert lab.job(job_of(abandoned))["TimeLimit"] == "00:01:00"
    assert followed.ended(commands[0], 1800) == 0, followed.logs()
    assert lab.wait_job(job_of(abandoned), timeout=600)["JobState"] == "COMPLETED", abandoned.logs()
    abandoned.snakemake("--unlock")
    for project in (followed, abandoned):
        project.snakemake()
        lives, rows = lives_of(project), attempts_of(project)
        assert lives >= 3
        assert [row["verdict"] for row in rows] == ["again"] * (lives - 1) + ["finished"]
        assert [row["slurm_restarts"] for row in rows] == [str(life) for life in range(lives)]
        assert {row["slurm_job_id"] for row in rows} == {job_of(project)}


# a sitecustomize.py: `does` at the end of each step
IN_EACH_STEP = """
import importlib.abc, importlib.machinery, sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "trainpkg.runtime.checkpoints.checkpoint":
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        load = found.loader.exec_module

        def exec_module(module):
            load(module)
            save = module.Checkpoints.maybe_save

            def maybe_save(self, step):
                {does}
                save(self, step)

            module.Checkpoints.maybe_save = maybe_save

        found.loader.exec_module = exec_module
        return found


sys.meta_path.insert(0, Finder())
"""


@pytest.mark.timeout(600)
def test_a_bug_is_trained_once_and_each_later_retry_costs_a_cpu_for_a_moment(lab: Lab, shared_dir: Path) -> None:
    bug = "if step == 5: raise KeyError('a bug')"
    (own(shared_dir, "bug") / "sitecustomize.py").write_text(IN_EACH_STEP.format(does=bug))
    prepend = f"env_prepend: {{PYTHONPATH: {shared_dir}/bug}}"
    config = CONFIG.replace("max_restarts: 0", f"max_restarts: 2, {prepend}")
    project = Project(lab, shared_dir, "run recipe launch.nodes launch.gpus_per_node\nbroken digits 2 2\n", config)
    project.skip_smoke()
    done = project.snakemake("results/runs/broken/train.json", "--retries", "1", status=1, timeout=500)
    [attempt] = [path.name for path in (project.run_dir("broken") / "launch").iterdir()]
    verdict = project.json(f"runs/broken/launch/{attempt}/attempt.json")
    assert verdict["generations"] == 2, "once more in place shows that it repeats"
    assert (verdict["failure"]["type"], verdict["failure"]["step"], verdict["run_again"]) == ("KeyError", 5, False)
    assert steps_of(project, "broken")[-1] == (1, 5)
    logs = sorted(project.path.glob(".snakemake/slurm_logs/rule_train/broken/*.log"), key=lambda path: int(path.stem))
    jobs = [lab.job(log.stem) for log in logs]
    assert [job["NumNodes"] for job in jobs] == ["2", "1"]
    assert [job["NumCPUs"] for job in jobs] == ["4", "1"]
    said = done.stdout + done.stderr + project.logs()
    assert "which another try does not change" in said


@pytest.mark.failure("F079")
def test_preempted_jobs_go_on() -> None:
    """With a time of grace nothing is lost; without one the run goes on from its last save. Slurm puts both back."""
    partitions = {
        "PartitionName": "urgent Nodes=n[1-2] PriorityTier=10 PreemptMode=off",
        "Partitionname": "graceful Nodes=n[1-2] PriorityTier=1 GraceTime=30",
    }
    preempt = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    environment = {"TEST_STEPS": "100", "TEST_PACE": "0.05"}
    with Lab(num_nodes=2, gpus_per_node=0, conf=preempt | partitions) as lab:
        options = {"graceful": "--partition=graceful", "sudden": "--partition=main"}
        launches = {
            name: SlurmLaunch(
                lab, own(lab.shared_dir, name), ONE, "--exclusive", where, *APPEND, more=OWN, **environment
            )
            for name, where in options.items()
        }
        for one in launches.values():
            one.wait_for_line("step 1 of")
        urgent = lab.sbatch("sleep 3", "--nodes=2", "--partition=urgent", "--exclusive", cwd=lab.shared_dir)
        assert lab.wait_job(urgent, timeout=60)["JobState"] == "COMPLETED"
        for one in launches.values():
            done = lab.wait_job(one.job, timeout=90)
            assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "1"), one.output
        first, last = (attempt_of(launches["graceful"].folder, number) for number in (1, 2))
        assert (first["verdict"], last["verdict"]) == ("again", "finished")
        assert last["step_first"] == first["step_last"] + 1
        first, last = (attempt_of(launches["sudden"].folder, number) for number in (1, 2))
        assert first.get("run_again") is not False, "whether it could still save depends on who dies first"
        assert last["verdict"] == "finished"
        assert last["step_first"] > 1
