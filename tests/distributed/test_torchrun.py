"""Ranks that torchrun starts: same plan, logs, blame, restarts and status as with spawn."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]
TWO = {"nodes": 2, "gpus_per_node": 2}
GLOO = {"entry": "tests.distributed.entries:gloo"}
LIMIT_S = 150.0  # agents and ranks import torch, one after the other, in turn with other tests
BOTH = pytest.mark.parametrize("backend", ["torchrun", "torchrun-static"])
# what agents do alike, however they meet
ALIKE = pytest.mark.parametrize("backend", ["torchrun", pytest.param("torchrun-static", marks=pytest.mark.long)])


def launched(folder: Path, keys: dict[str, Any], *more: Any, **named: Any) -> Launch:
    return Launch(folder / "run", keys, *more, limit_s=LIMIT_S, **named)


@pytest.mark.failure("F010")
def test_c10d_s_own_order_of_nodes_is_the_plan_s(tmp_path: Path) -> None:
    """Two nodes whose addresses, as text, sort the other way round than the nodes."""
    spec = {"hosts": ["sim0", "127.0.0.9", "127.0.0.10"]}
    done = launched(tmp_path, {"nodes": 3, "gpus_per_node": 1, "backend": "torchrun"}, spec).run()
    assert done.status == 0, done.output
    assert [node["rank_offset"] for node in done.file("0/plan.json")["nodes"]] == [0, 2, 1]
    environment = json.loads(done.out.read_text())["environment"]
    wanted = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "3",
        "NODE_RANK": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    assert wanted.items() <= environment.items()
    assert environment["MASTER_PORT"] != str(done.file("0/plan.json")["master_port"])  # c10d's second port
    logs = [(tmp_path / "run/launch/1/0" / f"node-{index}.log").read_text() for index in range(3)]
    assert ["rank 0 is" in logs[0], "rank 2 is" in logs[1], "rank 1 is" in logs[2]] == [True] * 3


@pytest.mark.failure("F096")
def test_a_killed_rank_is_the_cause_and_all_start_again_with_another_port(tmp_path: Path) -> None:
    """Stock torchrun names a victim; here two kills end one generation, and a restart in place goes on."""
    environment = {"TEST_BAD": "kill:3:5:0", "TEST_GRANDCHILDREN": "1"}
    done = launched(tmp_path, TWO | {"backend": "torchrun", "max_restarts": 1}, GLOO, environment).run()
    assert done.status == 0, done.output
    assert "rank 3 on node 1 (sim1) was killed by SIGKILL at step 4" in done.output
    told = done.file("0/failure.json")
    assert (told["rank"], told["node"], told["signal"], told["kind"]) == (3, 1, 9, "signal")
    assert {victim["kind"] for victim in told["victims"]} <= {"lost_peer", "stopped"}
    assert done.file("0/plan.json")["master_port"] != done.file("1/plan.json")["master_port"]
    assert done.file("attempt.json")["generations"] == 2
    assert not list(Path(tempfile.gettempdir()).glob("torchelastic_*/local-run-*"))


@pytest.mark.parametrize(
    ("nodes", "bad", "status", "sentence"),
    [
        (1, "exit7:1:4", 7, "rank 1 on node 0 (sim0) exited with status 7 at step 3"),
        (2, "exit0:2:4", 1, "rank 2 on node 1 (sim1) exited with status 0 at step 3, before"),
    ],
)
def test_each_end_has_its_own_status(tmp_path: Path, nodes: int, bad: str, status: int, sentence: str) -> None:
    keys = TWO | {"nodes": nodes, "backend": "torchrun-static"}
    failed = launched(tmp_path, keys, environment={"TEST_BAD": bad, "TEST_STEPS": "2000"}).run()
    assert failed.status == status, failed.output
    assert sentence in failed.last_line


@pytest.mark.failure("F090")
@ALIKE
def test_an_agent_that_is_killed_is_named_and_takes_its_ranks_along(tmp_path: Path, backend: str) -> None:
    def kill_agent(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        os.kill(agents(launch)[1], signal.SIGKILL)

    environment = {"TEST_STEPS": "2000", "TEST_GRANDCHILDREN": "1"}
    failed = launched(tmp_path, TWO | {"backend": backend}, environment=environment).run(kill_agent)
    assert failed.status == 137, failed.output
    assert "the torchrun (process " in failed.last_line
    assert "of node 1 (sim1) was killed by SIGKILL while its ranks ran" in failed.last_line
    assert {victim["kind"] for victim in failed.file("0/failure.json")["victims"]} <= {"lost_peer", "stopped"}


def agents(launch: Launch) -> list[int]:
    """The torchrun of each node, in node order."""
    found = []
    for index in range(2):
        log = (launch.folder / f"launch/1/0/torchrun-{index}.log").resolve()
        for pid in launch.processes("torch.distributed.run"):
            if Path(f"/proc/{pid}/fd/1").readlink() == log:
                found.append(pid)
    assert len(found) == 2
    return found


@pytest.mark.failure("F074")
@pytest.mark.failure("F076")
@ALIKE
def test_a_warning_signal_to_the_agent_alone_reaches_the_ranks_which_save(tmp_path: Path, backend: str) -> None:
    def warn(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("step 1 of")
        os.kill(agents(launch)[0], signal.SIGUSR2)

    stopped = launched(tmp_path, TWO | {"backend": backend}, environment={"TEST_STEPS": "2000"}).run(warn)
    assert stopped.status == 75, stopped.output
    assert "to be run again" in stopped.last_line


def test_a_stop_request_to_the_launch_saves_under_torchrun_too(tmp_path: Path) -> None:
    def stop(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("step 1 of")
        process.send_signal(signal.SIGTERM)

    keys = TWO | {"backend": "torchrun-static"}
    stopped = launched(tmp_path, keys, environment={"TEST_STEPS": "2000"}).run(stop)
    assert stopped.status == 75, stopped.output


@pytest.mark.failure("F032")
@pytest.mark.failure("F036")
@BOTH
def test_a_port_taken_between_release_and_bind_costs_a_generation_and_no_restart(tmp_path: Path, backend: str) -> None:
    taken: list[socket.socket] = []

    def take(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        plan = launch.folder / "launch/1/0/plan.json"
        launch.wait_for(lambda: plan.exists() and plan.read_text().endswith("\n"), "the plan")
        port, end = json.loads(plan.read_text())["master_port"], time.monotonic() + 30
        while not taken and time.monotonic() < end:  # the agent imports torch for a second before it binds
            thief = socket.socket()
            try:
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.bind(("0.0.0.0", port))
                thief.listen()
                taken.append(thief)
            except OSError:
                thief.close()
                time.sleep(0.001)

    done = launched(tmp_path, TWO | {"backend": backend, "max_restarts": 0}).run(take)
    assert taken
    taken[0].close()
    assert done.status == 0, done.output
    port = done.file("0/plan.json")["master_port"]
    assert f"of node 0 (sim0) found port {port} of 127.0.0.1 taken: another program bound it" in done.output
    assert done.file("0/failure.json")["kind"] == "port_taken"
    assert done.file("1/plan.json")["master_port"] != port
