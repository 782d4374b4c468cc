"""`node`, typed on three machines that know nothing of Slurm: the trainer itself, and what keeps machines apart."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.namespaces import Entered
from tests.cluster.plain import PlainMachines
from tests.distributed.start import TINY

pytestmark = pytest.mark.timeout(240)
THREE = ["m1", "m2", "m3"]


@pytest.fixture(scope="module")
def machines() -> Iterator[PlainMachines]:
    with PlainMachines() as booted:
        yield booted


class Typed:
    """Commands on machines, all from one folder that they share; `results` is where the run's files go."""

    def __init__(self, machines: PlainMachines, name: str, results: Path | None = None, **train: int) -> None:
        self.machines, self.folder = machines, machines.shared_dir / name
        self.folder.mkdir()
        self.results = results or self.folder / "results"
        recipe = {key: value for key, value in TINY["digits"].items() if key not in ("run", "recipe")}
        recipe["launch"] = {"device": "cpu", "max_restarts": 0, "start_timeout_s": 60.0}
        recipe["train"] = {"max_steps": 8, "global_batch": 48} | train
        (self.folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
        (self.folder / "runs.tsv").write_text("run\trecipe\ndigits\ttiny\n")
        tree = {"results_dir": str(self.results), "sheet": "runs.tsv", "recipes": "."}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(tree))
        (self.folder / "secret").touch(0o600)
        (self.folder / "secret").write_text("one secret for all of these nodes")
        self.nodes: list[Entered] = []

    def type(self, machine: str, node_rank: int, *words: str) -> Entered:
        command = [sys.executable, "-m", "trainpkg", "node", "--num-nodes=3", f"--node-rank={node_rank}"]
        command += ["--gpus-per-node=1", "--dist-url=tcp://m1:29500", "--secret-file=secret", "config.yaml", *words]
        self.nodes.append(self.machines.popen(machine, command, self.folder))
        return self.nodes[-1]

    def type_first(self) -> None:
        """Node 0, and wait until it listens."""
        output = self.type("m1", 0).stdout
        assert output is not None
        while "attempt 1" not in (line := output.readline()):
            assert line, "node 0 has ended"

    def ends(self, timeout_s: float = 120) -> list[tuple[int, str]]:
        """(status, output) of each command, in the order in which they were typed; and nothing is left anywhere."""
        found = []
        for node in self.nodes:
            output, _ = node.communicate(timeout=timeout_s)
            found.append((node.returncode, output))
        end = time.monotonic() + 10
        while left := self.machines.processes():
            assert time.monotonic() < end, (left, found)
            time.sleep(0.05)
        return found


@pytest.mark.failure("F004")
def test_three_machines_train_and_only_together(machines: PlainMachines) -> None:
    """Node 0's name is 127.0.1.1 to itself, and its address to the others."""
    typed = Typed(machines, "good")
    for machine in ("m3", "m1", "m2"):
        typed.type(machine, THREE.index(machine))
    found = typed.ends()
    assert [status for status, _ in found] == [0, 0, 0], found
    assert all("train of digits: finished at step 8" in output for _, output in found), found
    assert "m1 is 127.0.1.1 on this machine" in found[1][1] and "10.78.0.11 is taken" in found[1][1]
    plan = json.loads((typed.results / "runs/digits/launch/1/0/plan.json").read_text())
    assert [(node["host"], node["rank_offset"]) for node in plan["nodes"]] == [("m1", 0), ("m2", 1), ("m3", 2)]
    assert plan["master_addr"] == "10.78.0.11"
    assert json.loads((typed.results / "runs/digits/train.json").read_text())["hosts"] == THREE


@pytest.mark.failure("F007")
def test_a_run_directory_of_its_own_on_each_machine(machines: PlainMachines) -> None:
    """And a second machine that was told to be node 0 hears of it, as does the first."""
    typed = Typed(machines, "apart", Path("/tmp/results"))
    typed.type_first()
    for machine in ("m2", "m3"):
        typed.type(machine, THREE.index(machine))
    found = typed.ends()
    assert [status for status, _ in found] == [1, 1, 1], found
    for _, output in found:
        assert "run directory of node 0, /tmp/results/runs/digits, is not the one of this path here" in output, found

    second = Typed(machines, "second")
    second.type_first()
    second.type("m2", 0)
    found = second.ends()
    assert [status for status, _ in found] == [1, 2], found
    assert "address 10.78.0.11 (m1) is not on this host m2 (have 10.78.0.12)" in found[1][1]
    assert all("two machines say that they are node 0: m1" in output for _, output in found), found


def test_ctrl_c_on_one_machine_ends_all_and_a_cut_cable_is_named(machines: PlainMachines) -> None:
    typed = Typed(machines, "long", max_steps=100_000)
    for index, machine in enumerate(THREE):
        typed.type(machine, index)
    end = time.monotonic() + 120
    metrics = typed.results / "runs/digits/metrics.jsonl"
    while not metrics.exists() or not metrics.read_text():
        assert time.monotonic() < end, typed.ends(1)
        time.sleep(0.1)
    typed.nodes[2].send_signal(signal.SIGINT)
    found = typed.ends()
    assert [status for status, _ in found] == [130, 130, 130], found
    assert all("SIGINT on node 2 (m3)" in output for _, output in found), found

    machines.link("m3", "down")
    cut = Typed(machines, "cut")
    for index, machine in enumerate(THREE):
        cut.type(machine, index, "--start-timeout=8")
    found = cut.ends()
    machines.link("m3", "up")
    assert [status for status, _ in found] == [1, 1, 2], found
    for _, output in found[:2]:
        assert "waiting for node 2 of 3" in output and "did not call m1 port 29500 within 8 s" in output, found
    assert "m3 has not reached node 0 at m1 port 29500 within 8 s" in found[2][1], found
