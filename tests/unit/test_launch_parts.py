"""Parts of the launcher that are values: command lines, environments, folders; and processes one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import trainpkg
from tests.distributed.launched import make_run
from tests.unit.test_rollcall import make_spec
from trainpkg.errors import UserError
from trainpkg.launch import processes
from trainpkg.launch.head import attempt, history
from trainpkg.launch.head.attempt import Folder
from trainpkg.launch.head.outcome import Outcome
from trainpkg.launch.head.steps import places
from trainpkg.launch.node import environment
from trainpkg.launch.plan import make_plan
from trainpkg.launch.slurm.allocation import Allocation

ROOT = Path(trainpkg.__file__).parent.parent


def test_the_node_side_needs_the_standard_library_alone() -> None:
    modules = (
        "trainpkg.__main__",
        "trainpkg.launch.node.node",
        "trainpkg.launch.start.zygote",
        "trainpkg.launch.start.enter",
    )
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(modules)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.failure("F090")
def test_srun_is_told_everything() -> None:
    spec = make_spec(2, where="slurm", cpus_per_task=8)
    assert places.srun_command(spec, ["n1", "n2"]) == [
        "srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--cpu-bind=none",
        "--kill-on-bad-exit=1", "--wait=60", "--overlap", "--mpi=none", "--unbuffered", "--job-name=train-r",
    ]  # fmt: skip
    assert places.srun_command(spec, ["n1", "n2", "n3"])[-1] == "--nodelist=n1,n2"


def test_sruns_environment_keeps_nothing_of_another_step() -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "1", "SLURM_NTASKS": "9", "SRUN_DEBUG": "3", "SBATCH_X": "1"}
    env |= {"SLURM_CONF": "/c", "PATH": "/bin", "MY_SLURM_THING": "1"}
    kept = {"SLURM_JOB_ID", "SLURM_CONF", "PATH", "MY_SLURM_THING"}
    assert set(places.srun_environment(env)) == kept


def test_hosts_and_end_of_a_job_of_which_only_the_number_is_known() -> None:
    allocation = Allocation("7")
    fields = {"NodeList": "n[1-3]", "EndTime": "2030-01-01T00:00:00"}
    assert places.hosts_of_job(allocation, fields, 2) == ["n1", "n2"]
    with pytest.raises(UserError, match=r"launch.nodes = 4, but Slurm job 7 has 3 node\(s\): n1,n2,n3"):
        places.hosts_of_job(allocation, fields, 4)
    end = places.end_of_job(allocation, fields)
    assert end == time.mktime((2030, 1, 1, 0, 0, 0, 0, 0, -1))
    assert places.end_of_job(allocation, {"EndTime": "Unknown"}) is None


def test_a_ranks_environment() -> None:
    spec = make_spec(2)
    plan = make_plan(spec.hosts, [2, 1], master_addr="127.0.0.1", master_port=6000, one_machine=True, generation=3)
    env = environment.for_rank(spec, Path("spec.json"), plan, 1, 0, "cpu", {})
    wanted = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "NODE_RANK": "1", "TRAINPKG_GENERATION": "3"}
    wanted |= {"TRAINPKG_DIST_BACKEND": "gloo", "TRAINPKG_HOST": "n2", "GLOO_SOCKET_IFNAME": "lo"}
    assert wanted.items() <= env.items()
    assert Path(str(env["TRAINPKG_SPEC"])).is_absolute()
    assert environment.for_rank(spec, Path("s"), plan, 0, 0, "cuda", {})["TRAINPKG_DIST_BACKEND"] == "nccl"


@pytest.mark.parametrize(
    ("stage", "out", "run_dir", "launches"),
    [
        ("train", "results/runs/a/train.json", "results/runs/a", "results/runs/a/launch"),
        ("evaluate", "results/runs/a/evaluation.json", "results/runs/a", "results/runs/a/evaluate/launch"),
        ("smoke", "results/smoke/1x2-cpu.json", "results/smoke/1x2-cpu", "results/smoke/1x2-cpu/launch"),
    ],
)
def test_folders_follow_the_output(tmp_path: Path, stage: str, out: str, run_dir: str, launches: str) -> None:
    folder = Folder.of(stage, tmp_path / out)
    assert (folder.run_dir, folder.launches) == (tmp_path / run_dir, tmp_path / launches)


def test_attempts_are_counted_and_remembered(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a/train.json")
    folder = Folder.of("train", tmp_path / "a/train.json")
    for number in (1, 2, 3):
        spec = attempt.make_spec(run, folder, ["sim0"], "local")
        assert spec.attempt == number
        attempt.open_attempt(spec, folder, run)
        attempt.close_attempt(spec, folder, Outcome("stuck" if number == 3 else "failed", 9, sentence="why"))
        if number < 3:
            attempt.refuse_repetition(folder, 2)
    assert history.read_attempt(folder.launches, 1)["cause"] == "why"
    with pytest.raises(UserError, match="attempt 3 ended with why") as caught:
        attempt.refuse_repetition(folder, 2)
    assert caught.value.status == 78
    attempt.refuse_repetition(folder, 1)
    assert attempt.read_fingerprint(tmp_path / "a/config.yaml") == run.fingerprint()


def test_an_evaluation_wants_the_trained_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a/train.json")
    folder = Folder.of("evaluate", tmp_path / "a/evaluation.json")
    with pytest.raises(UserError, match="has no trained run"):
        attempt.check_trained(folder, run)
    train = Folder.of("train", tmp_path / "a/train.json")
    attempt.open_attempt(attempt.make_spec(run, train, ["sim0"], "local"), train, run)
    attempt.check_trained(folder, run)
    with pytest.raises(UserError, match="holds a run with fingerprint"):
        attempt.check_trained(folder, run.model_copy(update={"seed": 9}))


def test_set_aside_leaves_the_lock_and_loses_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs/a/train.json")
    folder = Folder.of("train", tmp_path / "runs/a/train.json")
    attempt.open_attempt(attempt.make_spec(run, folder, ["sim0"], "local"), folder, run)
    (folder.run_dir / "lock").write_text("mine")
    other = run.model_copy(update={"seed": 9})
    assert attempt.set_aside_other_run(folder, run) == ""
    aside = Path(attempt.set_aside_other_run(folder, other))
    assert aside == tmp_path / "runs/.old" / f"a.{run.fingerprint()}"
    assert (aside / "launch/1/spec.json").is_file()
    assert [path.name for path in folder.run_dir.iterdir()] == ["lock"]


def test_descendants_of_every_kind_die(tmp_path: Path) -> None:
    """Children, a grandchild whose parent is gone, one in a session of its own; the spared one lives."""
    code = """
import json, os, subprocess, sys, time
from trainpkg.launch import processes
processes.adopt_orphans()
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
kept = subprocess.Popen(sleep)
subprocess.Popen(["setsid", "sh", "-c", "sleep 60 & sleep 60 & exit 0"])
subprocess.Popen(sleep, start_new_session=True)
time.sleep(0.3)
before = processes.descendants(os.getpid())
left = processes.kill_descendants([kept.pid])
alive = kept.poll() is None
kept.kill()
print(json.dumps([len(before), left, alive, processes.descendants(os.getpid(), [kept.pid])]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout) == [4, [], True, []]


def zygote(*preload: str) -> Any:
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [
        sys.executable,
        "-m",
        "trainpkg.launch.start.zygote",
        f"--fd={theirs.fileno()}",
        f"--parent={os.getpid()}",
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, f"--preload={','.join(preload)}"], pass_fds=[theirs.fileno()], cwd=ROOT, env=env
    )
    theirs.close()
    ours.settimeout(20)
    return ours, process


def test_the_fork_server_starts_reports_and_ends(tmp_path: Path) -> None:
    ours, process = zygote("json")
    assert json.loads(ours.recv(65536))["event"] == "ready"
    for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        process.send_signal(signum)
    order = {"rank": 5, "entry": "sys:exit", "env": {"A": "b", "PATH": None}, "log": str(tmp_path / "log")}
    ours.send(json.dumps(order).encode())
    events = [json.loads(ours.recv(65536)) for _ in range(2)]
    assert [event["event"] for event in events] == ["started", "exited"]
    assert (events[1]["exit_code"], events[1]["signal"], events[1]["rank"]) == (0, None, 5)
    ours.close()
    assert process.wait(10) == 0


def test_the_fork_server_says_why_it_cannot() -> None:
    for module, words in (("no_such_module", "cannot import"), ("tests.distributed.threaded", "2 threads")):
        ours, process = zygote("json", module)
        told = json.loads(ours.recv(65536))
        assert told["event"] == "failed"
        assert words in told["message"]
        ours.close()
        process.wait(10)


def test_exit_statuses() -> None:
    assert processes.ending(9) == (None, 9)
    assert processes.ending(7 << 8) == (7, None)
