"""A network that is broken in the ways of public reports, under a real Slurm: what is said, and how soon.

Each fault is made with the system's own tools in the network namespace of a node and taken back afterwards.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.cluster.test_launch import TWO, SlurmLaunch

pytestmark = pytest.mark.timeout(120)
failure = pytest.mark.failure
GLOO = {"spec": {"entry": "tests.distributed.entries:gloo", "preload": ["torch"]}}  # ranks that really meet


@contextlib.contextmanager
def broken(lab: Lab, node: str, breaking: str, mending: str) -> Iterator[None]:
    """Lines of shell in the node's namespaces, and those that undo them."""
    lab.realms[node].script(breaking)
    try:
        yield
    finally:
        lab.realms[node].script(mending)


def firewall(lab: Lab, node: str, *rules: str) -> contextlib.AbstractContextManager[None]:
    """A host firewall that lets answers pass and treats new connections from elsewhere by these rules."""
    rules = ("iif lo accept", "ct state established,related accept", *rules)
    chain = "add chain inet site input { type filter hook input priority 0; }"
    lines = ["add table inet site", chain, *(f"add rule inet site input {rule}" for rule in rules)]
    return broken(lab, node, "\n".join(f"nft '{line}'" for line in lines), "nft flush ruleset")


def hosts_file(lab: Lab, node: str, text: str) -> contextlib.AbstractContextManager[None]:
    """Another /etc/hosts on one node."""
    path = lab.shared_dir / f"hosts-{node}"
    path.write_text(f"127.0.0.1 localhost\n{text}\n10.77.0.1 ctl\n")
    return broken(lab, node, f"mount --bind {path} /etc/hosts", "umount /etc/hosts")


@contextlib.contextmanager
def listening(lab: Lab, node: str, *ports: int) -> Iterator[None]:
    """Another program that listens at these ports of the node."""
    program = f"import socket, time; s = [socket.create_server(('', p)) for p in {ports}]; print(1); time.sleep(600)"
    other = lab.popen([sys.executable, "-uc", program], node=node, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline() == "1\n"
        yield
    finally:
        other.kill()
        other.wait()


def refused(lab: Lab, folder: Path, keys: dict[str, Any] | None = None) -> tuple[str, float]:
    """The last line of a launch that must fail, and the seconds from the start of its nodes to it."""
    job = SlurmLaunch(lab, folder, TWO | (keys or {}), "--nodes=2")
    job.wait_for_line("starting srun")
    begin = time.monotonic()
    job.wait_for_line("(status 1)")
    seconds = time.monotonic() - begin
    verdict = job.output[job.output.index("failed: ") :]
    print(f"{seconds:.1f} s: {verdict}")
    assert job.status() == 1
    job.nothing_left(10)
    return verdict, seconds


ROLL_CALL_PORTS = "tcp dport 10000-32767"


@failure("F018")
@failure("F028")
@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        ("drop", "no answer within 4 s: a firewall drops it"),
        ("reject with icmpx admin-prohibited", "No route to host, at once: a firewall there rejects it"),
        ("reject with tcp reset", "Connection refused: the machine is up, but nobody listens there, or a firewall"),
    ],
)
def test_a_firewall_is_told_from_a_missing_node(lab: Lab, shared_dir: Path, answer: str, meaning: str) -> None:
    with firewall(lab, "n1", f"{ROLL_CALL_PORTS} {answer}"):
        verdict, seconds = refused(lab, shared_dir)
    assert "node 1 (n2) did not answer the roll call: n2 cannot reach the coordinator, `launch` on" in verdict
    assert meaning in verdict
    assert "By hand: `nc -l" in verdict and "on n1, then `nc -v 10.77.0.11" in verdict
    assert "launch.port" in verdict
    assert seconds < 30  # measured: 5 to 10


@failure("F028")
def test_closed_ports_of_the_data_are_found_before_the_ranks_start(lab: Lab, shared_dir: Path) -> None:
    """Where node 0 listens all is open; the ranks of n2 would wait for others on ports that are not."""
    with firewall(lab, "n2", "tcp dport 32768-60999 drop"):
        verdict, seconds = refused(lab, shared_dir)
    assert "node 0 (n1) does not reach node 1 (n2) at 10.77.0.12 port" in verdict
    assert "no answer within 4 s" in verdict and "exchange data on ports 32768-60999" in verdict
    assert "`nc -l" in verdict and "on n2, then `nc -v 10.77.0.12" in verdict and "on n1" in verdict
    assert seconds < 30
    assert not list(shared_dir.glob("run/launch/1/0/rank-*.log"))


@failure("F030")
@failure("F036")
def test_ports_that_a_firewall_leaves_open_serve_the_roll_call_and_each_restart(lab: Lab, shared_dir: Path) -> None:
    keys = TWO | {"port": "20000-20005", "max_restarts": 2}
    open_ports = firewall(lab, "n1", f"{ROLL_CALL_PORTS} tcp dport != 20000-20005 drop")
    with listening(lab, "n1", 20_003), open_ports:
        job = SlurmLaunch(lab, shared_dir, keys, "--nodes=2", more=GLOO, TEST_BAD="kill:2:5:0,1")
        assert job.status() == 0, job.output
    plans = [json.loads((shared_dir / f"run/launch/1/{number}/plan.json").read_text()) for number in range(3)]
    assert {plan["master_port"] for plan in plans} <= {20_000, 20_001, 20_002, 20_004, 20_005}


@failure("F036")
def test_no_free_port_of_the_range_is_said_at_once(lab: Lab, shared_dir: Path) -> None:
    with listening(lab, "n1", 20_000, 20_001):
        verdict, _ = refused(lab, shared_dir, {"port": "20000-20002"})
    assert "node 0 (n1) cannot open a port for the ranks: launch.port = 20000-20002: no free port on n1" in verdict


DOCKER = "ip link add docker0 type bridge\nip addr add 172.17.0.1/16 dev docker0\nip link set docker0 up"
RENAME = "ip link set {old} down\nip link set {old} name {new}\nip link set {new} up"


@failure("F004")
@failure("F015")
@failure("F019")
@failure("F024")
@failure("F025")
@failure("F027")
def test_debians_hosts_files_docker_bridges_and_interfaces_of_other_names(lab: Lab, shared_dir: Path) -> None:
    """All at once, with ranks that really meet: each of them alone defeats gloo where it is left to itself."""
    with contextlib.ExitStack() as stack:
        for node in ("n1", "n2"):
            stack.enter_context(hosts_file(lab, node, f"127.0.1.1 {node}"))
            stack.enter_context(broken(lab, node, DOCKER, "ip link del docker0"))
        there, back = RENAME.format(old="eth0", new="ens5"), RENAME.format(old="ens5", new="eth0")
        stack.enter_context(broken(lab, "n2", there, back))
        job = SlurmLaunch(lab, shared_dir, TWO, "--nodes=2", more=GLOO)
        assert job.status() == 0, job.output
    plan = json.loads((shared_dir / "run/launch/1/0/plan.json").read_text())
    assert plan["master_addr"] == "10.77.0.11"
    assert plan["addresses"] == [["10.77.0.11", "eth0"], ["10.77.0.12", "ens5"]]
    for word in ("its own name n1 leads to 127.0.1.1 there", "its own name n2 leads to 127.0.1.1 there",
                 "ranks are at n1 10.77.0.11 (eth0), n2 10.77.0.12 (ens5)"):  # fmt: skip
        assert word in job.output


@failure("F007")
@failure("F009")
def test_a_name_that_nodes_understand_differently_is_shown_with_their_answers(lab: Lab, shared_dir: Path) -> None:
    with contextlib.ExitStack() as stack:
        for node, address in {"n1": "10.77.0.11", "n2": "10.77.0.13"}.items():
            stack.enter_context(hosts_file(lab, node, f"{address} first"))
        verdict, seconds = refused(lab, shared_dir, {"master_addr": "first"})
    assert "launch.master_addr = first: the nodes do not mean the same machine by this name" in verdict
    assert "\n  10.77.0.11 <- node 0 (n1)\n  10.77.0.13 <- node 1 (n2) (status 1)" in verdict
    assert seconds < 20


@failure("F007")
def test_an_address_of_another_machine_is_refused_with_those_of_the_first_node(lab: Lab, shared_dir: Path) -> None:
    verdict, seconds = refused(lab, shared_dir, {"master_addr": "ctl"})
    assert "launch.master_addr = ctl: the address 10.77.0.1 is not on the first node n1, which has 10.77" in verdict
    assert seconds < 20


@failure("F004")
def test_a_name_that_leads_the_first_node_to_itself_is_replaced(lab: Lab, shared_dir: Path) -> None:
    with hosts_file(lab, "n1", "127.0.1.1 n1"):
        job = SlurmLaunch(lab, shared_dir, TWO | {"master_addr": "n1"}, "--nodes=2")
        assert job.status() == 0, job.output
    assert "launch.master_addr = n1 leads node 0 (n1) to itself; 10.77.0.11, which the others mean by it" in job.output
    assert json.loads((shared_dir / "run/launch/1/0/plan.json").read_text())["master_addr"] == "10.77.0.11"
