"""The launcher on a real Slurm of three nodes, with ranks that behave badly where no simulated node can show it."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT

pytestmark = pytest.mark.timeout(180)
TWO = {"where": "slurm", "nodes": 2, "gpus_per_node": 2}
STRANGE = "ranks|trainpkg|launched|sleep"


class SlurmLaunch:
    """`launch` of test entries as a batch job whose environment knows the job's number only, as under Snakemake."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        launch: dict[str, Any],
        *options: str,
        more: dict[str, Any] | None = None,
        under: str = "",
        spec: dict[str, Any] | None = None,
        **environment: str,
    ) -> None:
        """`options` are sbatch's; `more` says more of the launch, such as `requeue`; `under`: words before it."""
        self.lab, self.folder = lab, folder
        self.out = folder / "run/train.json"
        fields = {"entry": "tests.distributed.entries:steps", "preload": ["json"]} | (spec or {})
        given = {"launch": launch, "spec": fields, **(more or {})}
        tested = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        command = ["env", "-i", *tested, "OMP_NUM_THREADS=2", "PATH=$PATH", "SLURM_JOB_ID=$SLURM_JOB_ID"]
        command += [sys.executable, "-m", "tests.distributed.launched", str(self.out), shlex.quote(json.dumps(given))]
        script = f"cd {CHECKOUT}\n{under}{' '.join(command)}\nstatus=$?\necho $status > {folder}/status\nexit $status\n"
        self.job = lab.sbatch(
            script, f"--output={folder}/out", "--ntasks-per-node=1", "--cpus-per-task=2", *options, cwd=folder
        )

    @property
    def output(self) -> str:
        path = self.folder / "out"
        return path.read_text() if path.exists() else ""

    def wait_for_line(self, *texts: str) -> None:
        """Until one of the texts is in the output."""
        try:
            self.lab.wait_until(lambda: any(text in self.output for text in texts), str(texts), timeout=60)
        except TimeoutError as error:
            error.add_note(self.output)
            raise

    def status(self) -> int:
        self.lab.wait_job(self.job, timeout=90)
        return int((self.folder / "status").read_text())

    def ours(self) -> list[tuple[str, int, str]]:
        return [process for process in self.lab.processes("trainpkg") if process[2]]

    def nothing_left(self, within_s: float = 5.0) -> None:
        self.lab.wait_until(lambda: not self.ours(), "no process left on any node", timeout=within_s)


def test_two_nodes_with_nothing_but_the_jobs_number(lab: Lab, shared_dir: Path) -> None:
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", "--time=10")
    assert job.status() == 0, job.output
    plan = json.loads((shared_dir / "run/launch/1/0/plan.json").read_text())
    assert [(node["host"], node["rank_offset"]) for node in plan["nodes"]] == [("n1", 0), ("n2", 2)]
    assert plan["master_addr"].startswith("10.77.")
    environment = json.loads(job.out.read_text())["environment"]
    assert environment["GLOO_SOCKET_IFNAME"] not in ("", "lo")
    assert environment["OMP_NUM_THREADS"] == "1"
    spec = json.loads((shared_dir / "run/launch/1/spec.json").read_text())
    assert abs(spec["deadline"] - time.time() - 600) < 120
    assert "TRAINPKG_SECRET" not in environment
    job.nothing_left()


def test_whole_nodes_bring_all_their_gpus(lab: Lab, shared_dir: Path) -> None:
    """An exclusive job that named no GPUs: its steps get none unless they ask."""
    job = SlurmLaunch(lab, shared_dir, {"where": "slurm", "nodes": 2, "device": "auto"}, "--nodes=2", "--exclusive")
    assert job.status() == 0, job.output
    plan = json.loads((shared_dir / "run/launch/1/0/plan.json").read_text())
    assert [node["num_ranks"] for node in plan["nodes"]] == [4, 4]
    assert plan["gpus"] == [["0", "1", "2", "3"]] * 2


def test_a_job_of_two_parts_whose_nodes_differ(lab: Lab, shared_dir: Path) -> None:
    """One launch over all of them: `sbatch -N1 --gres=gpu:1 : -N2 --gres=gpu:3`."""
    first, second = ["--nodes=1", "--gres=gpu:1"], [":", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:3"]
    job = SlurmLaunch(lab, shared_dir, {"where": "slurm", "nodes": 3, "device": "auto"}, *first, *second)
    assert job.status() == 0, job.output
    plan = json.loads((shared_dir / "run/launch/1/0/plan.json").read_text())
    assert [(node["host"], node["rank_offset"], node["num_ranks"]) for node in plan["nodes"]] == [
        ("n1", 0, 1), ("n2", 1, 3), ("n3", 4, 3)
    ]  # fmt: skip


def test_fewer_nodes_than_the_job_has(lab: Lab, shared_dir: Path) -> None:
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=3")
    assert job.status() == 0, job.output


def test_more_nodes_than_the_job_has(lab: Lab, shared_dir: Path) -> None:
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=1")
    assert job.status() == 2
    assert "launch.nodes = 2, but Slurm job" in job.output


def test_a_stopped_node_is_named_at_the_deadline(lab: Lab, shared_dir: Path) -> None:
    keys = TWO | {"nodes": 3, "rollcall_timeout_s": 5.0}
    job = SlurmLaunch(lab, shared_dir, keys, "--nodes=3", TEST_BORN="0")
    stopped: list[int] = []

    def stop() -> bool:
        for node, pid, command in lab.processes("trainpkg node"):
            if node == "n2" and "srun" not in command:
                lab.kill(node, pid, signal.SIGSTOP)
                stopped.append(pid)
        return bool(stopped)

    lab.wait_until(stop, "the node process of n2", timeout=30)
    lab.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=bad fan = 3"])
    begin = time.monotonic()
    assert job.status() == 1, job.output
    assert time.monotonic() - begin < 25
    assert "node 1 (n2) did not answer the roll call within 5 s" in job.output
    assert "node 1 (n2): Slurm says MIXED+DRAIN (bad fan = 3, root" in job.output and "its machine is up" in job.output
    job.nothing_left(10)


def test_a_node_without_its_slurmd_is_named_and_not_the_one_that_is_ended_for_it(lab: Lab, shared_dir: Path) -> None:
    wait = f"until [ -e {shared_dir}/go ]; do sleep 0.1; done; "
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", "--no-requeue", under=wait)
    lab.wait_job(job.job, "RUNNING")
    lab.stop_daemon("n2")
    (shared_dir / "go").touch()
    assert job.status() == 1, job.output
    assert "failed: node 1 (n2): srun could not start its launcher there: Communication connection fail" in job.output
    job.nothing_left(15)


@pytest.mark.failure("F086")
@pytest.mark.failure("F090")
@pytest.mark.failure("F095")
def test_a_killed_rank_ends_all_processes_on_all_nodes(lab: Lab, shared_dir: Path) -> None:
    environment = {"TEST_STEPS": "5000", "TEST_BAD": "kill:3:40", "TEST_GRANDCHILDREN": "1", "TEST_MARK": "trainpkg"}
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", **environment)
    job.wait_for_line("4 of 4 ranks joined")
    assert job.status() == 137, job.output
    job.nothing_left()
    told = json.loads((shared_dir / "run/launch/1/0/failure.json").read_text())
    assert (told["rank"], told["host"], told["signal"]) == (3, "n2", 9)


@pytest.mark.failure("F090")
def test_the_signal_that_killed_the_launcher_of_a_node_is_known(lab: Lab, shared_dir: Path) -> None:
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", TEST_STEPS="5000")
    job.wait_for_line("4 of 4 ranks joined")
    for node, pid, command in lab.processes("trainpkg node"):
        if node == "n2" and "srun" not in command:
            lab.kill(node, pid, signal.SIGKILL)
    assert job.status() == 137, job.output
    assert "node 1 (n2) vanished" in job.output
    assert "srun says: Killed" in job.output
    job.nothing_left(15)


@pytest.mark.failure("F077")
@pytest.mark.failure("F088")
def test_a_warning_signal_saves_and_asks_to_be_run_again(lab: Lab, shared_dir: Path) -> None:
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", TEST_STEPS="5000")
    job.wait_for_line("step 1 of")
    lab.run(["scancel", "--signal=USR2", job.job])
    assert job.status() == 75, job.output
    assert "to be run again" in job.output
    job.nothing_left()


@pytest.mark.failure("F086")
@pytest.mark.failure("F093")
def test_a_killed_launch_leaves_nothing_on_any_node(lab: Lab, shared_dir: Path) -> None:
    environment = {"TEST_STEPS": "5000", "TEST_GRANDCHILDREN": "1", "TEST_MARK": "trainpkg"}
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", **environment)
    job.wait_for_line("4 of 4 ranks joined")
    for node, pid, command in lab.processes("tests.distributed.launched"):
        if "env -i" not in command:
            lab.kill(node, pid, signal.SIGKILL)
    assert job.status() == 137
    job.nothing_left(15)


def test_a_short_outage_of_the_network_is_survived(lab: Lab, shared_dir: Path) -> None:
    """The ranks of these entries meet through files, so only the launcher's own connections are cut."""
    job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", TEST_STEPS="400", TEST_PACE="0.05")
    job.wait_for_line("step 1 of")
    lab.link_down("n2")
    job.wait_for_line("node 1 (n2) has been silent for 5 s")
    lab.link_up("n2")
    job.wait_for_line("node 1 (n2) is heard again")
    assert job.status() == 0, job.output


@pytest.mark.failure("F090")
def test_a_cut_link_without_a_reset_ends_the_job(lab: Lab, shared_dir: Path) -> None:
    keys = TWO | {"heartbeat_timeout_s": 8.0}
    job = SlurmLaunch(lab, shared_dir, keys, "--nodes=2", TEST_STEPS="5000", TEST_PACE="0.05")
    job.wait_for_line("step 1 of")
    lab.link_down("n2")
    begin = time.monotonic()
    job.wait_for_line("node 1 (n2) was silent for")
    assert time.monotonic() - begin < 12
    job.nothing_left(30)  # the node that is cut off ends its ranks by itself
    lab.link_up("n2")
    assert job.status() == 1, job.output


@pytest.mark.failure("F090")
def test_a_node_that_loses_power_is_named(lab: Lab, shared_dir: Path) -> None:
    keys = TWO | {"heartbeat_timeout_s": 8.0}
    job = SlurmLaunch(lab, shared_dir, keys, "--nodes=2", TEST_STEPS="5000")
    job.wait_for_line("4 of 4 ranks joined")
    lab.crash("n2")
    # whether its connections are still reset depends on which of its processes dies first
    job.wait_for_line("node 1 (n2) was silent for", "node 1 (n2) vanished")
    job.wait_for_line("(status 1)")
