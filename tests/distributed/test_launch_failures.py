"""Launches that fail: the cause is named, its status returned, and nothing is left, in seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
TWO = {"nodes": 2, "gpus_per_node": 2}
LONG = {"TEST_STEPS": "2000"}


@pytest.mark.parametrize(
    ("bad", "status", "sentence"),
    [
        ("kill:3:4", 137, "rank 3 on node 1 (sim1) was killed by SIGKILL at step 3"),
        ("segv:0:4", 139, "rank 0 on node 0 (sim0) was killed by SIGSEGV at step 3"),
        ("error:2:4", 1, "rank 2 on node 1 (sim1) raised RuntimeError at step 4: the loss is nan"),
        ("user_error:1:1", 2, "rank 1 on node 0 (sim0) raised ValueError at step 1: optim.lr = 7 is too much"),
        ("exit0:1:4", 1, "rank 1 on node 0 (sim0) exited with status 0 at step 3, before"),
        ("exit7:1:4", 7, "rank 1 on node 0 (sim0) exited with status 7 at step 3 without a word"),
        ("killnode:2:4", 137, "node 1 (sim1) vanished"),
        ("killzygote:2:4", 137, "node 1 (sim1) lost all its ranks: the fork server ended by SIGKILL"),
    ],
)
@pytest.mark.failure("F090")
@pytest.mark.failure("F096")
def test_the_cause_is_named_and_all_ranks_go(tmp_path: Path, bad: str, status: int, sentence: str) -> None:
    failed = Launch(tmp_path / "run", TWO, environment=LONG | {"TEST_BAD": bad}).run()
    assert failed.status == status, failed.output
    assert sentence in failed.last_line
    told = failed.file("0/failure.json")
    assert told["status"] == status
    assert told["sentence"] in failed.last_line
    assert failed.seconds < 30


@pytest.mark.failure("F096")
def test_a_killed_rank_takes_all_down_within_five_seconds(tmp_path: Path) -> None:
    times: list[float] = []

    def kill_one(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        ranks = [pid for pid in launch.processes("trainpkg.launch.start.zygote") if _parent_is_zygote(pid)]
        times.append(time.monotonic())
        os.kill(ranks[-1], signal.SIGKILL)
        process.wait(30)
        launch.wait_for(lambda: not launch.processes(), "the end of all processes")
        times.append(time.monotonic())

    spec = {"entry": "tests.distributed.entries:gloo", "preload": ["torch", "torch.distributed"]}
    failed = Launch(tmp_path / "run", TWO | {"stop_grace_s": 3.0}, spec, LONG).run(kill_one)
    assert failed.status == 137, failed.output
    assert "was killed by SIGKILL" in failed.last_line
    assert times[1] - times[0] < 5
    victims = failed.file("0/failure.json")["victims"]
    assert {victim["kind"] for victim in victims} <= {"lost_peer", "stopped"}
    assert len(victims) == 3


def _parent_is_zygote(pid: int) -> bool:
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1]
    return "trainpkg.launch.start.zygote" in Path(f"/proc/{parent}/cmdline").read_text()


@pytest.mark.failure("F086")
@pytest.mark.failure("F095")
def test_grandchildren_of_every_kind_are_gone(tmp_path: Path) -> None:
    environment = LONG | {"TEST_BAD": "error:0:3", "TEST_GRANDCHILDREN": "1"}
    failed = Launch(tmp_path / "run", TWO, environment=environment).run()
    assert failed.status == 1, failed.output


@pytest.mark.failure("F086")
def test_a_rank_deaf_to_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    environment = LONG | {"TEST_BAD": "hang:1:2"}

    def kill_another(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("2 of 2 ranks joined")
        time.sleep(0.3)
        ranks = [pid for pid in launch.processes("trainpkg.launch.start.zygote") if _parent_is_zygote(pid)]
        os.kill(ranks[0], signal.SIGKILL)

    keys = {"nodes": 1, "gpus_per_node": 2, "stop_grace_s": 1.0}
    failed = Launch(tmp_path / "run", keys, environment=environment).run(kill_another)
    assert failed.status in (137,), failed.output


def test_an_entry_that_cannot_be_imported(tmp_path: Path) -> None:
    failed = Launch(tmp_path / "run", TWO, {"entry": "tests.distributed.entries:import_error"}).run()
    assert failed.status == 1
    assert "No module named 'no_such_module'" in failed.output


def test_a_preload_that_cannot_be_imported(tmp_path: Path) -> None:
    failed = Launch(tmp_path / "run", TWO, {"preload": ["json", "no_such_module"]}).run()
    assert failed.status == 1
    assert "could not start its ranks: cannot import no_such_module" in failed.last_line
    assert "ModuleNotFoundError" in failed.output


def test_an_import_that_does_not_end_on_one_node_is_named_at_the_deadline(tmp_path: Path) -> None:
    spec = {"preload": ["json", "tests.distributed.slow_import"]}
    environment = {"TEST_SLOW_IMPORT": "sim1:600"}
    failed = Launch(tmp_path / "run", TWO | {"start_timeout_s": 3.0}, spec, environment).run()
    assert failed.status == 1, failed.output
    assert "node 1 (sim1) is not ready: its ranks' imports (json, tests.distributed.slow_import)" in failed.last_line
    assert "are not done within 3 s (launch.start_timeout_s)" in failed.last_line
    assert failed.file("0/failure.json")["node"] == 1
    assert failed.seconds < 30


def test_a_slow_import_on_one_node_takes_nothing_from_the_time_to_join(tmp_path: Path) -> None:
    spec = {"preload": ["json", "tests.distributed.slow_import"]}
    keys = TWO | {"init_timeout_s": 1.0}  # beyond it and the margin of 5 s the ranks of node 0 would be late
    done = Launch(tmp_path / "run", keys, spec, {"TEST_SLOW_IMPORT": "sim1:8"}).run()
    assert done.status == 0, done.output


def test_a_node_that_dies_during_the_imports_is_named_at_once(tmp_path: Path) -> None:
    def kill_node_1(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("master address proven")
        for pid in launch.processes("node", "--node-rank=1"):
            os.kill(pid, signal.SIGKILL)

    spec = {"preload": ["json", "tests.distributed.slow_import"]}
    failed = Launch(tmp_path / "run", TWO, spec, {"TEST_SLOW_IMPORT": "sim0:600"}).run(kill_node_1)
    assert failed.status == 137, failed.output
    assert "node 1 (sim1) vanished before the first step" in failed.last_line
    assert failed.seconds < 30


def test_a_node_that_never_answers_is_named_at_the_deadline(tmp_path: Path) -> None:
    def stop_node_1(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: launch.processes("node", "--node-rank=1"), "node 1")
        os.kill(launch.processes("node", "--node-rank=1")[0], signal.SIGSTOP)

    keys = {"nodes": 3, "gpus_per_node": 1, "rollcall_timeout_s": 2.0}
    failed = Launch(tmp_path / "run", keys).run(stop_node_1)
    assert failed.status == 1
    assert "node 1 (sim1) did not answer the roll call within 2 s of the first answer" in failed.last_line
    assert "answered: node 0 (sim0), node 2 (sim2)" in failed.last_line
    assert failed.seconds < 30


def test_a_silent_node_is_named_and_given_up(tmp_path: Path) -> None:
    def stop_node_1(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("2 of 2 ranks joined")
        for pid in launch.processes("node", "--node-rank=1"):
            os.kill(pid, signal.SIGSTOP)
        launch.wait_for_line("node 1 (sim1) has been silent for 5 s")

    keys = {"nodes": 2, "gpus_per_node": 1, "heartbeat_timeout_s": 8.0}
    failed = Launch(tmp_path / "run", keys, environment=LONG | {"TEST_PACE": "0.1"}).run(stop_node_1)
    assert failed.status == 1, failed.output
    assert "node 1 (sim1) was silent for" in failed.last_line


def test_a_node_that_dies_at_the_roll_call(tmp_path: Path) -> None:
    failed = Launch(tmp_path / "run", {"nodes": 2}, {"gpus_per_node": [1, 1], "device": "cuda"}).run()
    assert failed.status == 1
    assert "0 GPUs are visible where launch.gpus_per_node = 1 asks for 1" in failed.last_line


def test_an_interface_that_no_node_has_ends_the_roll_call(tmp_path: Path) -> None:
    failed = Launch(tmp_path / "run", TWO | {"env": {"GLOO_SOCKET_IFNAME": "nosuch0"}}).run()
    assert failed.status == 1, failed.output
    for word in ("node ", "(sim", "GLOO_SOCKET_IFNAME is 'nosuch0', but this host has the interfaces lo"):
        assert word in failed.last_line
    assert failed.seconds < 30


def test_a_node_that_cannot_open_its_log_says_so(tmp_path: Path) -> None:
    """An OSError between `go` and the ranks' start: here a folder has the name of its log."""

    def block(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        (launch.folder / "launch/1/1/node-1.log").mkdir(parents=True)

    environment = LONG | {"TEST_BAD": "kill:1:40:0"}
    failed = Launch(tmp_path / "run", TWO | {"max_restarts": 1}, environment=environment).run(block)
    assert failed.status == 1, failed.output
    assert "node 1 (sim1) could not start its ranks: [Errno 21] Is a directory" in failed.last_line


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.failure("F086")
@pytest.mark.failure("F093")
def test_nothing_outlives_the_launch(tmp_path: Path, signum: int) -> None:
    def end(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        process.send_signal(signum)

    environment = LONG | {"TEST_GRANDCHILDREN": "1"}
    ended = Launch(tmp_path / "run", TWO, environment=environment).run(end)
    assert ended.status == (130 if signum == signal.SIGINT else -9), ended.output


def test_ctrl_c_at_the_roll_call(tmp_path: Path) -> None:
    def end(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: launch.processes("node", "--node-rank=1"), "node 1")
        os.kill(launch.processes("node", "--node-rank=1")[0], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)

    ended = Launch(tmp_path / "run", TWO).run(end)
    assert ended.status == 130, ended.output


def test_one_writer_per_run(tmp_path: Path) -> None:
    def start_second(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("2 of 2 ranks joined")
        second = Launch(tmp_path / "run")
        second.log = tmp_path / "second.log"
        second.run()
        assert second.status == 78
        assert f"process {process.pid}" in second.output
        process.send_signal(signal.SIGINT)

    Launch(tmp_path / "run", {"gpus_per_node": 2}, environment=LONG).run(start_second)
