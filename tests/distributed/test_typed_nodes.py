"""`node` typed per machine, without Slurm: one verdict for all commands; what keeps them apart is named on each."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.distributed.machines import Machines

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]
LONG = {"TEST_STEPS": "2000"}


@pytest.mark.failure("F052")
def test_nodes_by_flags_and_by_variables_in_any_order(tmp_path: Path) -> None:
    machines = Machines(tmp_path / "m", environment={"TEST_PACE": "0"})
    variables = {"NNODES": "2", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    machines.type("--local", f"--secret-file={machines.secret}", **variables, MASTER_PORT=str(machines.port))
    machines.type_node(0, gpus_per_node=2)
    assert machines.statuses() == [0, 0], machines.output
    assert "(NNODES=2, NODE_RANK=1, MASTER_ADDR=127.0.0.1, " in machines.output_of(0)
    for number in (0, 1):
        assert "train of r: finished at step 5" in machines.output_of(number)
        assert "world size 4 on 2 nodes" in machines.output_of(number)
    environment = json.loads((machines.run_dir / "train.json").read_text())["environment"]
    assert (environment["RANK"], environment["LOCAL_WORLD_SIZE"], environment["WORLD_SIZE"]) == ("0", "2", "4")
    assert not any("one secret for all" in value for value in environment.values())
    logs = machines.run_dir / "launch/1/0"
    assert all((logs / name).exists() for name in ("node-0.log", "node-1.log", "rank-3.log", "plan.json"))

    again = Machines(tmp_path / "again")  # a finished run is said to be finished on all nodes
    (machines.run_dir / "finished.json").write_text((machines.run_dir / "train.json").read_text())
    again.folder.joinpath("results").symlink_to(machines.folder / "results")
    fingerprint = json.dumps({"fingerprint": _fingerprint(machines.run_dir)})
    (machines.run_dir / "finished.json").write_text(fingerprint)
    again.type_node(0)
    again.type_node(1)
    assert again.statuses() == [0, 0], again.output
    assert "finished already" in again.output_of(0) and "finished already" in again.output_of(1)


def _fingerprint(run_dir: Path) -> str:
    lines = (run_dir / "config.yaml").read_text().splitlines()
    return next(line.split()[1].strip("'\"") for line in lines if line.startswith("fingerprint:"))


def test_who_does_not_know_the_secret_is_refused_and_hinders_nobody(tmp_path: Path) -> None:
    machines = Machines(tmp_path / "m")
    wrong = tmp_path / "wrong"
    machines.write_secret(wrong, "a secret that somebody made up")
    machines.type_node(0)
    machines.type_node(1, secret_file=wrong)
    machines.wait_for_words(0, "refused a stranger's connection from 127.0.0.1: wrong secret")
    machines.type_node(1)
    assert machines.statuses() == [0, 2, 0], machines.output
    assert "do not know each other" in machines.output_of(1) and "sha256sum" in machines.output_of(1)


@pytest.mark.parametrize(
    ("how", "statuses", "sentence"),
    [
        ("exit7:1:4", [7, 7], "rank 1 on node 1 (node1) exited with status 7 at step 3 without a word"),
        ("ctrl-c", [130, 130], "SIGINT on node 1 (node1)"),
        ("kill node 1", [1, -9], "node 1 (node1) vanished"),
        ("kill node 0", [-9, 1], "ended without a verdict; all ranks here were ended"),
    ],
)
def test_one_verdict_for_all(tmp_path: Path, how: str, statuses: list[int], sentence: str) -> None:
    """And nothing is left on any machine, grandchildren of ranks included."""
    bad = {"TEST_BAD": how} if ":" in how else {}
    machines = Machines(tmp_path / "m", environment=LONG | {"TEST_GRANDCHILDREN": "1"} | bad)
    nodes = [machines.type_node(index) for index in range(2)]
    if not bad:
        machines.wait_for_words(0, "2 of 2 ranks joined")
        signum = signal.SIGINT if how == "ctrl-c" else signal.SIGKILL
        os.kill(nodes[0 if how == "kill node 0" else 1].pid, signum)
    assert machines.statuses() == statuses, machines.output
    for number in range(2):
        if statuses[number] != -signal.SIGKILL:
            assert sentence in machines.output_of(number), machines.output


def test_whoever_is_missing_is_named(tmp_path: Path) -> None:
    machines = Machines(tmp_path / "m")
    nodes = [machines.type_node(index, 3) for index in range(2)]
    for number in range(2):  # while there is still time to type it
        machines.wait_for_words(number, "waiting for node 2 of 3. Is it typed on its machine")
    os.kill(nodes[1].pid, signal.SIGINT)
    assert machines.statuses() == [130, 130]
    machines.all_say("python -m trainpkg node --num-nodes 3 --node-rank 2")
    alone = Machines(tmp_path / "alone")
    alone.type_node(1, start_timeout=0.5)
    assert alone.statuses() == [2]
    alone.all_say("has not reached node 0 at 127.0.0.1 port", "Connection refused", "--node-rank 0 typed there?")


@pytest.mark.parametrize(
    ("typed", "statuses", "sentence"),
    [
        ([(0, {}), (1, {}), (1, {})], [1, 1, 1], "two nodes say that they are node 1: "),
        ([(0, {}), (0, {})], [1, 2], "two machines say that they are node 0"),
        ([(0, {}), (1, {}), (2, {"gpus_per_node": 2})], [1, 1, 1], "--gpus-per-node is 1 on node 0"),
    ],
)
def test_what_does_not_fit_is_named_on_all(
    tmp_path: Path, typed: list[tuple[int, dict[str, int]]], statuses: list[int], sentence: str
) -> None:
    machines = Machines(tmp_path / "m")
    for node_rank, more in typed:
        machines.type_node(node_rank, **{"num_nodes": 3, **more})
        if node_rank == 0:
            machines.wait_for_words(0, "train of r, attempt 1")
    assert machines.statuses() == statuses, machines.output
    machines.all_say(sentence)


def test_a_mistake_on_node_0_is_told_to_those_who_wait(tmp_path: Path) -> None:
    """The run directory is another job's: found out after the port is open, before any roll call."""
    machines = Machines(tmp_path / "m", environment=LONG)
    machines.type_node(0, 1)
    machines.wait_for_words(0, "1 of 1 ranks joined")
    machines.port += 1
    machines.type_node(1)
    machines.type_node(0)
    machines.nodes[2].wait(60)
    os.kill(machines.nodes[0].pid, signal.SIGINT)
    assert machines.statuses() == [130, 78, 78], machines.output
    for number in (1, 2):
        assert "this run is being written by" in machines.output_of(number)
