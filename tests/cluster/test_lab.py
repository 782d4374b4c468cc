"""The lab itself: what the other tests of this directory rely on, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT, PARENT, PREFIX
from tests.cluster.namespaces import all_pids

SHOW = "echo $(hostname) $SLURM_NODEID $SLURM_PROCID $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"


def rows(text: str) -> list[list[str]]:
    return sorted(line.split() for line in text.splitlines())


def test_three_nodes_with_own_names_ids_and_gpus(lab: Lab) -> None:
    out = lab.run(["srun", "-N3", "-n3", "--gpus-per-node=2", "sh", "-c", SHOW]).stdout
    assert rows(out) == [[f"n{i + 1}", str(i), str(i), "2", "0,1"] for i in range(3)]


def test_an_uneven_allocation(lab: Lab) -> None:
    """A total over the job is split as Slurm likes it, full nodes first: `--nodes=2 --gpus=4` is 3 + 1."""
    out = lab.run(["srun", "-N2", "-n2", "--ntasks-per-node=1", "--gpus=4", "sh", "-c", SHOW]).stdout
    assert rows(out) == [["n1", "0", "0", "3", "0,1,2"], ["n2", "1", "1", "1", "0"]]


def test_uneven_tasks(lab: Lab) -> None:
    out = lab.run(["srun", "-N2", "-n4", "--gpus=4", "sh", "-c", "echo $(hostname) $SLURM_TASKS_PER_NODE"]).stdout
    assert rows(out) == [["n1", "3,1"]] * 3 + [["n2", "3,1"]]


def test_each_node_has_its_own_tmp_and_all_see_the_shared_directory(lab: Lab, shared_dir: Path) -> None:
    lab.run(["srun", "-N3", "sh", "-c", f"touch /tmp/$(hostname) /dev/shm/$(hostname) {shared_dir}/$(hostname)"])
    for node in lab.nodes:
        for directory in ("/tmp", "/dev/shm"):
            assert set(lab.run(["ls", directory], node).stdout.split()) & set(lab.nodes) == {node}
        assert lab.run(["ls", shared_dir], node).stdout.split() == lab.nodes
        assert lab.run(["test", "-e", CHECKOUT / "pyproject.toml"], node).returncode == 0


def test_a_job_starts_at_once(lab: Lab, shared_dir: Path) -> None:
    job_id = lab.sbatch("srun --nodes=2 hostname", "--nodes=2", "--partition=smoke", cwd=shared_dir)
    lab.wait_job(job_id, "COMPLETED", timeout=10)
    assert (shared_dir / f"slurm-{job_id}.out").read_text().split() in (["n1", "n2"], ["n2", "n1"])


def test_requeue(lab: Lab, shared_dir: Path) -> None:
    script = "echo ${SLURM_RESTART_COUNT:-0}; [ ${SLURM_RESTART_COUNT:-0} = 1 ] || sleep 100"
    job_id = lab.sbatch(script, "--open-mode=append", "--output=out", cwd=shared_dir)
    lab.wait_until(lambda: (shared_dir / "out").exists() and "0" in (shared_dir / "out").read_text(), "the job's start")
    lab.run(["scontrol", "requeue", job_id])
    assert lab.wait_job(job_id, "COMPLETED")["Restarts"] == "1"
    assert (shared_dir / "out").read_text().splitlines()[-1] == "1"


def test_mpi_list(lab: Lab) -> None:
    done = lab.run(["srun", "--mpi=list"])
    assert "pmi2" in done.stdout + done.stderr


def test_processes_are_found_and_killed_by_the_pid_they_know(lab: Lab) -> None:
    tell = "import os, time; print(os.uname().nodename, os.getpid(), flush=True); time.sleep(100)"
    srun = lab.popen(["srun", "-N2", "-n2", "-K1", sys.executable, "-c", tell], stdout=subprocess.PIPE)
    assert srun.stdout is not None
    told = {name: int(pid) for name, pid in (srun.stdout.readline().split() for _ in range(2))}
    assert {node: pid for node, pid, _ in lab.processes(r"time\.sleep\(100\)")} == told
    lab.kill("n2", told["n2"], signal.SIGSEGV)
    with srun:
        assert srun.wait(timeout=20) == 128 + signal.SIGTERM  # the highest of all tasks', not the cause's
    lab.wait_jobs_gone()
    assert not lab.processes()


def test_signals_reach_the_command_itself(lab: Lab) -> None:
    caught = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(7)); print(1, flush=True); signal.pause()"
    with lab.popen([sys.executable, "-c", caught], "n3", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=10) == 7


def test_what_is_broken_is_mended(lab: Lab) -> None:
    connect = "import socket; socket.create_connection(('n2', 6818), timeout=1)"
    lab.run([sys.executable, "-c", connect])
    lab.link_down("n2")
    assert lab.run([sys.executable, "-c", connect], check=False).returncode == 1
    lab.stop_daemon("n1")
    lab.crash("n3")
    lab.mend()
    assert rows(lab.run(["srun", "-N3", "hostname"]).stdout) == [[node] for node in lab.nodes]


# --- nothing stays behind ---

OWNER = """
import json, os, pathlib, signal, subprocess, sys
from tests.cluster.lab import Lab
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
with Lab(num_nodes=2, gpus_per_node=1) as lab:
    srun = lab.popen(["srun", "-N2", "sleep", "1000"])
    lab.wait_until(lambda: len(lab.processes("sleep 1000")) == 2, "the job")
    spaces = [os.readlink(f"/proc/{r.pid}/ns/{kind}") for r in lab.realms.values() for kind in ("pid", "net", "mnt")]
    tops = [lab.realms["ctl"].process.pid, lab.realms["ctl"].pid]
    print(json.dumps({"work_dir": str(lab.work_dir), "namespaces": spaces, "tops": tops}), flush=True)
    signal.pause()
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=CHECKOUT, stdout=pipe, stderr=null, text=True) as process:
        yield process
        process.kill()


def namespaces_in_use() -> set[str]:
    found = set()
    for pid in all_pids():
        for kind in ("pid", "net", "mnt"):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))  # noqa: PTH115
            except OSError:
                continue
    return found


def machine_state() -> tuple[set[str], set[str]]:
    """Network devices and mount points."""
    devices = {path.name for path in Path("/sys/class/net").iterdir()}
    return devices, {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_ended(owner: subprocess.Popen[str], sig: signal.Signals) -> None:
    before = machine_state()
    assert owner.stdout is not None
    told = json.loads(owner.stdout.readline())
    assert set(told["namespaces"]) <= namespaces_in_use()
    assert machine_state() == before, "the lab shows on the machine"
    owner.send_signal(sig)
    owner.wait(timeout=20)
    Lab.wait_until(lambda: not set(told["namespaces"]) & namespaces_in_use(), "the namespaces to go", 10)
    assert not Path(told["work_dir"]).exists()
    assert machine_state() == before


def test_a_directory_left_over_is_removed_at_the_next_start(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    told = json.loads(owner.stdout.readline())
    owner.send_signal(signal.SIGSTOP)  # so that it cannot clean up, as if all was killed at once
    for pid in told["tops"]:
        os.kill(pid, signal.SIGKILL)
    owner.kill()
    owner.wait(timeout=20)
    Lab.wait_until(lambda: not set(told["namespaces"]) & namespaces_in_use(), "the namespaces to go", 10)
    assert Path(told["work_dir"]).exists()
    with Lab(num_nodes=1, gpus_per_node=0) as lab:
        assert not Path(told["work_dir"]).exists()
        assert lab.work_dir in PARENT.glob(f"{PREFIX}*")
        assert lab.run(["srun", "hostname"]).stdout == "n1\n"
