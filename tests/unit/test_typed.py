"""What is typed on machines without Slurm: flags against variables, one machine against another, HOST and secret."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import socket
from pathlib import Path

import pytest

from trainpkg.errors import UserError
from trainpkg.launch import network
from trainpkg.launch.facts import NodeFacts, contradictions
from trainpkg.launch.head.meeting.reception import Endpoint, Reception
from trainpkg.launch.ranges import RankRange, check_ranges
from trainpkg.launch.spec import Spec
from trainpkg.launch.typed import address
from trainpkg.launch.typed.agreement import misfit
from trainpkg.launch.typed.command import Typed, add_arguments, command_lines, resolve
from trainpkg.launch.typed.secret import read_secret

FLAGS = "--num-nodes 4 --node-rank 1 --gpus-per-node 8 --dist-url tcp://10.0.0.1:29500"
VARIABLES = {
    "NNODES": "4", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip


def typed(words: str = FLAGS, env: dict[str, str] | None = None) -> Typed:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return resolve(parser.parse_args(shlex.split(words)), env or {})


@pytest.mark.parametrize(("words", "env"), [(FLAGS, {}), ("", VARIABLES), (FLAGS, VARIABLES)])
def test_flags_and_variables_say_the_same(words: str, env: dict[str, str]) -> None:
    found = typed(words, env)
    assert (found.num_nodes, found.node_rank, found.gpus_per_node) == (4, 1, (8,) * 4)
    assert (found.host, found.port) == ("10.0.0.1", 29500)
    taken = " ".join(found.taken)
    assert ("--num-nodes=4" in taken) == bool(words) and ("NNODES=4" in taken) == (not words)


def test_uneven_nodes_and_ipv6() -> None:
    found = typed("--num-nodes 3 --node-rank 2 --gpus-per-node 8(x2),4 --dist-url tcp://[fd00::1]:7".replace("(", "\\(")
                  .replace(")", "\\)"), {"LOCAL_WORLD_SIZE": "4"})  # fmt: skip
    assert (found.gpus_per_node, found.host, found.port) == ((8, 8, 4), "fd00::1", 7)


@pytest.mark.parametrize(
    ("words", "env", "named"),
    [
        (FLAGS, {"NNODES": "2"}, ["--num-nodes is '4'", "NNODES is '2'"]),
        (FLAGS, {"NODE_RANK": "0"}, ["--node-rank is '1'", "NODE_RANK is '0'"]),
        (FLAGS, {"LOCAL_WORLD_SIZE": "4"}, ["--gpus-per-node is '8'", "LOCAL_WORLD_SIZE is '4'"]),
        (FLAGS, {"MASTER_ADDR": "10.0.0.2"}, ["tcp://10.0.0.1:29500", "MASTER_ADDR is '10.0.0.2'"]),
        (FLAGS, {"MASTER_PORT": "1"}, ["tcp://10.0.0.1:29500", "MASTER_PORT is '1'"]),
        ("", {}, ["--num-nodes (or NNODES)", "--node-rank (or NODE_RANK)", "--dist-url"]),
        ("", {"MASTER_ADDR": "n1"}, ["MASTER_ADDR and MASTER_PORT"]),
        (FLAGS.replace("10.0.0.1:29500", "10.0.0.1"), {}, ["'tcp://10.0.0.1'", "tcp://HOST:PORT"]),
        (FLAGS.replace("tcp://", "env://"), {}, ["'env://10.0.0.1:29500'"]),
        (FLAGS.replace("29500", "70000"), {}, ["70000"]),
        (FLAGS.replace("per-node 8", "per-node 8,8"), {}, ["'8,8'", "2 node(s)", "there are 4"]),
        (FLAGS.replace("per-node 8", "per-node 0"), {}, ["'0'"]),
        pytest.param(FLAGS.replace("tcp://10", "'tcp:// 10").replace("29500", "29500'"), {}, ["' 10.0.0.1'"],
                     marks=pytest.mark.failure("F012")),
        pytest.param("", VARIABLES | {"MASTER_ADDR": " 10.0.5.4"}, ["' 10.0.5.4'"], marks=pytest.mark.failure("F012")),
        pytest.param("", VARIABLES | {"MASTER_PORT": "29500 "}, ["'29500 '"], marks=pytest.mark.failure("F012")),
        # a rank given as a node's index
        (FLAGS.replace("rank 1", "rank 8"), {}, ["is 8", "4 nodes", "first rank of node 1", "--node-rank 1"]),
        (FLAGS.replace("rank 1", "rank 4"), {}, ["--node-rank is 4", "4 nodes, 0 to 3"]),
        pytest.param(FLAGS, {"SLURM_LOCALID": "3"}, ["SLURM_LOCALID is '3'", "--ntasks-per-node=1"],
                     marks=pytest.mark.failure("F033")),
        pytest.param(FLAGS, {"LOCAL_RANK": "1"}, ["LOCAL_RANK is '1'", "trainpkg train"],
                     marks=pytest.mark.failure("F033")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(words: str, env: dict[str, str], named: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        typed(words, env)
    assert all(part in str(caught.value) for part in named), str(caught.value)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (FLAGS.replace("nodes 4", "nodes 2"), ["--num-nodes is 4 on node 0 (a)", "2 on b (process 7)", "node 1"]),
        (FLAGS.replace("rank 1", "rank 0"), ["two machines say that they are node 0: a", "and b (process 7)"]),
        (FLAGS + " --run other", ["train of run 'r'", "'other'"]),
        (FLAGS + " --stage smoke", ["train of run 'r'", "smoke of"]),
        (FLAGS.replace("per-node 8", "per-node 4"), ["8 on node 0 (a), but 4 on node 1", "rank(s) 4-7 would run twice",
                                                     "ranks 0-7 on node 0, ranks 4-7 on node 1 by its own"]),
        (FLAGS.replace("per-node 8", "per-node 16"), ["is 8 on node 0 (a), but 16", "rank(s) 8-15 would run nowhere"]),
        (FLAGS.replace("--gpus-per-node 8", ""), ["is 8 on node 0 (a), but left out on node 1"]),
    ],
)  # fmt: skip
def test_machines_that_were_told_different_things(words: str, named: list[str]) -> None:
    own = dataclasses.replace(typed(FLAGS.replace("rank 1", "rank 0")), run="r")
    asked = typed(words).question("b", 7)
    assert all(part in misfit(own, "a", asked) for part in named), misfit(own, "a", asked)


def test_machines_that_agree() -> None:
    own = dataclasses.replace(typed(FLAGS.replace("rank 1", "rank 0")), run="r")
    assert misfit(own, "a", typed().question("b", 7)) == ""
    assert misfit(own, "a", typed("", VARIABLES).question("b", 7)) == ""


@pytest.mark.parametrize(
    ("firsts", "count", "named"),
    [
        ([0, 1, 2, 3], 8, ["rank(s) 1-7 would run twice", "0, 1, 2, 3 look like node indices", "are 0, 8, 16, 24"]),
        ([0, 8, 8, 16], 8, ["rank(s) 8-15 would run twice: ranks 8-15 on n1, ranks 8-15 on n2"]),
        ([0, 8, 24, 32], 8, ["rank(s) 16-23 would run nowhere"]),
        ([0, 8, 16], 8, ["rank(s) 24-31 of 32 would run nowhere"]),
        ([0, 8, 16, 24, 32], 8, ["40 ranks are claimed where the world size is 32"]),
        ([1, 9, 17, 25], 8, ["rank(s) 0-0 would run nowhere"]),
    ],
)
def test_ranges_of_ranks(firsts: list[int], count: int, named: list[str]) -> None:
    check_ranges([RankRange("a", 0, 8), RankRange("b", 8, 4), RankRange("c", 12, 1)], 13)
    with pytest.raises(UserError) as caught:
        check_ranges([RankRange(f"n{index}", first, count) for index, first in enumerate(firsts)], 32)
    assert all(part in str(caught.value) for part in named), str(caught.value)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two addresses and a hosts file."""
    own = [("lo", "127.0.0.1"), ("eth0", "10.0.0.5"), ("ib0", "10.1.0.5")]
    known = {"here": ["10.1.0.5"], "debian": ["127.0.1.1"], "vip": ["10.9.9.9"], "both": ["127.0.1.1", "10.0.0.5"]}
    monkeypatch.setattr(network, "own_addresses", lambda: [network.InterfaceAddress(*pair) for pair in own])
    monkeypatch.setattr(network, "reachable_addresses", lambda: ["10.0.0.5", "10.1.0.5"])
    monkeypatch.setattr(address, "resolve", lambda host: known.get(host, [host]))


@pytest.mark.usefixtures("names")
def test_host_is_an_address_of_node_0() -> None:
    assert address.own_address("10.0.0.5", 4, False, {}) == ("10.0.0.5", "")
    assert address.own_address("here", 4, False, {}) == ("10.1.0.5", "")
    assert address.own_address("both", 4, False, {}) == ("10.0.0.5", "")
    assert address.own_address("127.0.0.1", 1, False, {}) == ("127.0.0.1", "")
    assert address.own_address("127.0.0.1", 4, True, {}) == ("127.0.0.1", "")


@pytest.mark.usefixtures("names")
@pytest.mark.failure("F004")
def test_a_hosts_file_that_says_loopback_is_seen_through() -> None:
    found, warning = address.own_address("debian", 4, False, {})
    assert found == "10.0.0.5" and "debian is 127.0.1.1 on this machine" in warning


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("host", "env", "named"),
    [
        pytest.param("vip", {}, ["address 10.9.9.9 (vip) is not on this host", "(have 10.0.0.5, 10.1.0.5)"],
                     marks=pytest.mark.failure("F007")),
        pytest.param("10.9.9.9", {}, ["address 10.9.9.9 is not on this host"], marks=pytest.mark.failure("F007")),
        pytest.param("10.9.9.9", {"SLURM_LAUNCH_NODE_IPADDR": "10.9.9.9"}, ["where srun was called"],
                     marks=pytest.mark.failure("F003")),
        pytest.param("localhost", {}, ["'localhost'", "4 nodes", "wait for itself"], marks=pytest.mark.failure("F001")),
        pytest.param("127.0.0.2", {}, ["127.0.0.2", "--local"], marks=pytest.mark.failure("F001")),
        pytest.param("0.0.0.0", {}, ["0.0.0.0"], marks=pytest.mark.failure("F001")),
    ],
)  # fmt: skip
def test_host_that_is_not(host: str, env: dict[str, str], named: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        address.own_address(host, 4, False, env)
    assert all(part in str(caught.value) for part in named), str(caught.value)


@pytest.mark.usefixtures("names")
@pytest.mark.failure("F001")
def test_other_nodes_do_not_call_themselves() -> None:
    assert address.others_address("both", 4, False) == ["10.0.0.5"]
    assert address.others_address("localhost", 4, True) == ["localhost"]
    for host in ("localhost", "debian"):
        with pytest.raises(UserError, match="each would wait for itself"):
            address.others_address(host, 4, False)


@pytest.mark.failure("F032")
def test_a_port_that_another_program_has() -> None:
    with address.hold("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of --dist-url cannot be opened .*another program uses it"):
            address.hold("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)) as client, first.accept()[0] as served:
            served.close()  # this end waits in TIME_WAIT
            client.recv(1)
    address.hold("127.0.0.1", port).close()  # and does not hinder the next launch


def test_two_commands_on_one_machine() -> None:
    spec = Spec("train", "r", "/r", "/r/o", "/r/c", 1, 2, ["node0", "node1"], "typed", "/r/l", dist_addr="10.0.0.1")
    nodes = [NodeFacts(k, "same", 10 + k, 1, "cpu", machine="boot1 net:[4]") for k in range(2)]
    (found,) = contradictions(spec, nodes)
    assert "node 0 (process 10) and node 1 (process 11) are both on same" in found and "--local" in found
    assert not contradictions(dataclasses.replace(spec, typed_local=True), nodes)
    elsewhere = dataclasses.replace(nodes[1], machine="boot2 net:[4]")  # two machines of one name
    assert not contradictions(spec, [nodes[0], elsewhere])


@pytest.mark.parametrize(
    ("text", "mode", "named"),
    [
        ("a long enough secret\n", 0o640, ["mode 0640", "chmod 600"]),
        ("short\n", 0o600, ["holds 5 characters", "head -c 32 /dev/urandom"]),
        (None, 0o600, ["No such file", "umask 077"]),
    ],
)
def test_secrets_that_are_none(tmp_path: Path, text: str | None, mode: int, named: list[str]) -> None:
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(UserError) as caught:
        read_secret(path)
    assert all(part in str(caught.value) for part in named), str(caught.value)
    assert text is None or text.strip() not in str(caught.value)


def test_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("a long enough secret\n")
    assert read_secret(path) == "a long enough secret"


def test_the_lines_to_type() -> None:
    lines = command_lines(4, "8", "tcp://n1:29500", "secret file", "config/config.yaml", None)
    assert len(lines) == 4
    words = shlex.split(lines[2])
    assert words[:4] == ["python", "-m", "trainpkg", "node"]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(words[4:])
    assert resolve(args, {}).node_rank == 2 and args.secret_file == Path("secret file")


def test_missing_nodes_are_named_with_what_to_type(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "config.yaml").write_text("run: r\n")
    spec = Spec(
        "train", "r", str(tmp_path), "o", str(tmp_path / "config.yaml"), 1, 4, ["n"] * 4, "typed", str(tmp_path)
    )
    with address.hold("127.0.0.1", 0) as listener:
        lines = [f"line of node {index}" for index in range(4)]
        reception = Reception(Endpoint(typed(), "127.0.0.1", listener, "s", lines), spec, said.append)
    reception.remind([0], 0.0)
    assert said == []  # a moment is given
    reception.remind([0, 1], 1e9)
    assert "waiting for node 2, node 3 of 4" in said[0] and said[0].endswith("line of node 2")
    late = reception.too_late({0: None, 1: None, 2: None}, "node 0 (a), node 1 (b), node 2 (c)")
    assert "node 3 did not call 10.0.0.1 port 29500 within 600 s" in late and "answered: node 0 (a)" in late
    # node 0's own launcher is no command to type
    assert reception.too_late({1: None, 3: None}, "").endswith("line of node 2")
    assert "see node-0.log" in reception.too_late({1: None, 2: None, 3: None}, "")
