"""The doctor's rows of several nodes: what differs is named, a report fits on the wire, a bad row ends a smoke test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from trainpkg.launch import wire
from trainpkg.launch.doctor import checks, nodes, rows
from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, OK, WARN, Row
from trainpkg.launch.doctor.software import settings
from trainpkg.launch.facts import NodeFacts, RollCallError
from trainpkg.launch.head.meeting.examine import examine
from trainpkg.launch.spec import Spec

failure = pytest.mark.failure


def on_nodes(**by_host: dict[str, str]) -> nodes.Report:
    """Reports that hold the nodes' settings alone."""
    return {host: settings(Machine(env=env), Wanted()) for host, env in by_host.items()}


@failure("F101")
def test_settings_that_differ_between_nodes_are_named() -> None:
    reports = on_nodes(n1={"NCCL_PROTO": "LL"}, n2={"NCCL_PROTO": "Simple"}, n3={"NCCL_PROTO": "LL"})
    (row,) = nodes.differences(reports)
    assert (row.check, row.verdict) == ("NCCL_PROTO differs", BAD)
    assert row.found == "Simple on n2; LL on n1, n3"
    assert "launch.env" in row.fix
    (row,) = nodes.differences(on_nodes(n1={"TORCH_NCCL_BLOCKING_WAIT": "1"}, n2={}))
    assert (row.found, row.verdict) == ("1 on n1; not set on n2", WARN)


@failure("F101")
def test_settings_that_name_something_of_one_node_may_differ() -> None:
    reports = on_nodes(n1={"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "a"}, n2={"NCCL_SOCKET_IFNAME": "ens3"})
    assert nodes.differences(reports) == []
    assert nodes.differences(on_nodes(n1={"NCCL_ALGO": "Ring"}, n2={"NCCL_ALGO": "Ring"})) == []


@failure("F101")
def test_versions_limits_and_mtu_that_differ() -> None:
    def report(nccl: str, mtu: str, shm: str) -> list[Row]:
        mtu_row = Row("interface to the first node", f"eth0, mtu {mtu}", same=f"mtu {mtu}", fix="one MTU")
        return [Row("NCCL", nccl, same=nccl, differing=BAD), mtu_row, Row("/dev/shm", shm, same=shm)]

    found = nodes.differences({"n1": report("2.28.9", "9000", "8 GiB"), "n2": report("2.21.5", "1500", "8 GiB")})
    assert [(row.check, row.verdict) for row in found] == [
        ("NCCL differs", BAD),
        ("interface to the first node differs", WARN),
    ]
    assert found[0].found == "2.28.9 on n1; 2.21.5 on n2"
    assert "one MTU" in found[1].fix
    assert all(row.fix for row in found)


def test_a_table_says_once_what_all_nodes_say() -> None:
    same, other = Row("a", "x"), Row("b", "y", BAD, "mend it")
    reports = {"n1": [same, Row("b", "z")], "n2": [same, other]}
    assert [row.check for row in nodes.merged(reports)] == ["a", "b on n1", "b on n2"]
    assert nodes.sentence(nodes.merged(reports)) == "b on n2: y. mend it"


def test_a_report_fits_on_the_wire_and_keeps_what_is_wrong() -> None:
    many = [Row(f"check {number}", "x" * 900, OK, "fix") for number in range(200)]
    many[150] = Row("wrong", "\x00" * 5000, BAD, "mend it")
    report = nodes.fitting(many)
    wire.encode({"type": "examined", "generation": 0, "rows": report})
    (wrong,) = [row for row in rows.from_json(report) if row.verdict == BAD]
    assert wrong.fix == "mend it"
    assert len(report) > 20


def test_reports_come_through_sruns_output_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Row("a", "x" * 3000, BAD, "é"), *(Row(f"b{number}", "{") for number in range(20))]
    monkeypatch.setattr(checks, "examine", lambda *_: found)
    told = []
    for index, host in (("1", "n2"), ("0", "n1")):
        monkeypatch.setenv("SLURM_NODEID", index)
        monkeypatch.setenv("SLURMD_NODENAME", host)
        told.append(nodes.own_report(Wanted()).split("\n"))
    mixed = [line for pair in zip(*told, strict=True) for line in pair]  # as two tasks at once
    assert max(map(len, mixed)) < 1024
    assert len(mixed) > 2
    reports = nodes.gathered("a prologue speaks\n" + "\n".join(mixed))
    assert list(reports) == ["n1", "n2"]
    assert reports["n2"][0].fix == "é"
    assert len(reports["n2"][0].found) == nodes.MAX_TEXT


SPEC = Spec(stage="smoke", run="r", run_dir="/r", out="/r/x.json", config_path="/r/c", attempt=1, num_nodes=2,
            hosts=["n1", "n2"], where="slurm", launch_dir="/r/launch/1", cpus_per_task=4)  # fmt: skip


def facts_of(index: int) -> NodeFacts:
    return NodeFacts(index, f"n{index + 1}", 1, 2, "cpu", addresses=["10.0.0.1"])


def test_a_node_answers_in_time_whatever_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    wedge = threading.Event()

    def wedged(machine: Machine, wanted: Wanted) -> Row:
        wedge.wait(30)
        raise AssertionError("not waited for")

    def told(machine: Machine, wanted: Wanted) -> Row:
        return Row("wanted", f"{wanted.num_cpus} {wanted.world_size} {wanted.hosts} {wanted.head} {machine.env['A']}")

    monkeypatch.setattr(checks, "ON_NODE", [wedged, told])
    monkeypatch.setattr(nodes, "LIMIT_S", 0.2)
    question = {"generation": 0, "clock": 0.0, "head": "10.0.0.1", "world_size": 4}
    answer = asyncio.run(nodes.report(SPEC, facts_of(0), question, {"A": "1"}))
    wedge.set()
    late, wanted, clock = rows.from_json(answer["rows"])
    assert (late.check, late.verdict, late.found) == ("wedged", WARN, "no answer in time")
    assert wanted.found == "4 4 ('n1', 'n2') 10.0.0.1 1"
    assert (clock.verdict, "behind" in clock.found) == (WARN, True)


class Answering:
    """A coordinator whose nodes have these reports."""

    def __init__(self, *reports: list[Row]) -> None:
        self.members = dict(enumerate(reports))
        self.asked: list[dict[str, Any]] = []

    def tell_all(self, message: dict[str, Any]) -> None:
        self.asked.append(message)

    async def collect(self, kind: str, generation: int, indices: list[int]) -> dict[int, dict[str, Any]]:
        assert (kind, indices) == ("examined", [0, 1])
        return {index: {"rows": rows.as_json(self.members[index])} for index in indices}


@pytest.mark.parametrize("verdict", [OK, WARN, BAD])
def test_a_bad_row_ends_the_smoke_test_with_its_fix(tmp_path: Path, verdict: str) -> None:
    import dataclasses

    spec = dataclasses.replace(SPEC, out=str(tmp_path / "x.json"), launch_dir=str(tmp_path))
    coordinator, said = Answering([Row("a", "b")], [Row("a", "b"), Row("/dev/shm", "64 MiB", verdict, "Grow it.")]), []
    work = examine(coordinator, spec, [facts_of(0), facts_of(1)], said.append)  # type: ignore[arg-type]
    if verdict == BAD:
        with pytest.raises(RollCallError, match=r"smoke test failed at 'nodes': /dev/shm on n2: 64 MiB\. Grow it\."):
            asyncio.run(work)
        failed = json.loads((tmp_path / "x.failed.json").read_text())
        assert failed["checks"][0]["rows"][-1]["fix"] == "Grow it."
        assert "fix: Grow it." in (tmp_path / "x.failed.txt").read_text()
    else:
        asyncio.run(work)
        assert not (tmp_path / "x.failed.json").exists()
    assert ("".join(said) == "") == (verdict == OK)
    assert coordinator.asked[0]["world_size"] == 4
    told = json.loads((tmp_path / "nodes.json").read_text())
    assert list(told["nodes"]) == ["n1", "n2"]
    assert told["nodes"]["n2"][1]["verdict"] == verdict
