"""Own addresses, a port that is held, and connections that are tried, here and in an empty network."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainpkg.errors import UserError
from trainpkg.launch import network
from trainpkg.launch.network import (
    InterfaceAddress,
    bind_port,
    candidate_ports,
    connect_check,
    interface_environment,
    interface_of,
    is_loopback,
    own_addresses,
    port_seed,
    reachable_addresses,
    source_address_towards,
    validate_address,
    validate_port,
    visible_gpus,
)

failure = pytest.mark.failure
LOOPBACK = next((entry.interface for entry in own_addresses() if entry.address == "127.0.0.1"), "lo")


def test_own_addresses_and_their_interfaces() -> None:
    assert "127.0.0.1" in [entry.address for entry in own_addresses()]
    assert interface_of("127.0.0.1") in [name for _, name in socket.if_nameindex()]
    assert interface_of("203.0.113.77") is None
    for address in reachable_addresses():
        assert interface_of(address) and not is_loopback(address)


@failure("F024")
@failure("F025")
def test_bridges_of_containers_come_last_and_loopback_never(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("veth9", "169.254.1.1"), ("eno4", "10.0.0.4")]
    entries += [("ib0", "10.1.0.4"), ("eno4", "fd00::4"), ("lo", "::1")]
    monkeypatch.setattr(network, "own_addresses", lambda: [InterfaceAddress(*entry) for entry in entries])
    monkeypatch.setattr(network, "source_address_towards", lambda host, port: "10.1.0.4")
    assert reachable_addresses() == ["10.1.0.4", "10.0.0.4", "fd00::4", "172.17.0.1", "169.254.1.1"]


@failure("F019")
@failure("F027")
def test_the_interface_goes_to_gloo_and_exactly_to_nccl() -> None:
    assert interface_environment("127.0.0.1", {}) == {
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": f"={LOOPBACK}",
    }
    assert interface_environment("203.0.113.77", {}) == {}
    kept = interface_environment("127.0.0.1", {"NCCL_SOCKET_IFNAME": "^docker"})
    assert kept == {"GLOO_SOCKET_IFNAME": LOOPBACK}


@failure("F021")
@pytest.mark.parametrize("value", ["^lo,docker,veth", "nosuch0", "", " lo", "lo,lo"])
def test_a_wrong_interface_is_refused_with_the_names_there_are(value: str) -> None:
    with pytest.raises(UserError, match=r"GLOO_SOCKET_IFNAME is .*has the interfaces .*lo"):
        interface_environment("127.0.0.1", {"GLOO_SOCKET_IFNAME": value})


OWN = ["127.0.0.1", "127.0.1.1", "localhost", "Localhost.localdomain", "localhost.", "0.0.0.0"]
OWN6 = ["::1", "::", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"]
OTHERS = ["10.0.0.1", "n1", "fd00::1", "localhosts", "", "a\0"]


@failure("F004")
@pytest.mark.parametrize(
    ("address", "expected"), [*((text, True) for text in (*OWN, *OWN6)), *((text, False) for text in OTHERS)]
)
def test_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize("value", ["10.0.5.4", "n1", "rack1-n_2.site.org", "n1.", "fd00::1", "fe80::1%eth0", "1n"])
def test_good_addresses(value: str) -> None:
    assert validate_address(value, "X") == value


BLANK = ["", " ", " 10.0.5.4", "10.0.5.4 ", "n1\n", "n 1", "a\0"]
NO_IP = ["10.0.5", "10.0.5.256", "8", "[fd00::1]", "fd00::g", "fe80::1%", "\uff11\uff10.0.0.1"]
NO_NAME = ["n1:29500", "-n1", "n1-", "a..b", "n\u0661", "http://n1", "n" * 256, "a,b", "$(x)"]


@failure("F012")
@pytest.mark.parametrize("value", [*BLANK, *NO_IP, *NO_NAME])
def test_bad_addresses_are_quoted(value: str) -> None:
    with pytest.raises(UserError, match=r"^MASTER_ADDR is ") as caught:
        validate_address(value, "MASTER_ADDR")
    assert ascii(value)[:100] in str(caught.value)


@failure("F012")
def test_ports() -> None:
    assert validate_port("65535", "X") == 65_535
    for value in ("", "0", "65536", "-1", " 1", "1 ", "\u0661", "1e3", "1_000"):
        with pytest.raises(UserError, match=r"^X is "):
            validate_port(value, "X")


@failure("F030")
@failure("F032")
def test_candidates_are_all_ports_once_below_the_ephemeral_range() -> None:
    for job in range(12):
        assert sorted(candidate_ports(port_seed(str(job)))) == list(range(10_000, 32_768))
    ports = list(candidate_ports("7/3/1/0"))
    assert ports == list(candidate_ports("7/3/1/0"))
    assert ports[:50] != sorted(ports[:50])
    seeds = [("7",), ("8",), ("7", 1), ("7", 2), ("7", None, 2), ("7", None, 1, 1), (None,), ("71",), ("7", 11)]
    assert len({port_seed(*seed) for seed in seeds}) == len(seeds)  # type: ignore[arg-type]


@failure("F036")
def test_a_bound_port_is_held_and_the_next_candidate_taken_on_a_collision() -> None:
    seed = port_seed("4711")
    expected = candidate_ports(seed)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(bind_port("127.0.0.1", seed)) for _ in range(3)]
        ports = [listener.getsockname()[1] for listener in held]
        assert len(set(ports)) == 3
        tried = [next(expected) for _ in range(40)]
        assert [port for port in tried if port in ports] == ports  # in the order of the seed
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", ports[0]))
        assert all(connect_check("127.0.0.1", port, 1) is None for port in ports)
        assert held[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0


@failure("F030")
def test_ports_that_this_kernel_gives_away_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ephemeral_range", lambda: (12_000, 60_999))
    for job in range(5):
        with bind_port("127.0.0.1", port_seed(str(job))) as listener:
            assert 10_000 <= listener.getsockname()[1] < 12_000
    monkeypatch.setattr(network, "ephemeral_range", lambda: (1024, 65_535))
    with bind_port("127.0.0.1", "whole") as listener:
        assert listener.getsockname()[1] == next(candidate_ports("whole"))


def test_one_listener_serves_both_families_where_a_host_has_both() -> None:
    assert network.listen_address(["10.0.0.1", "10.1.0.1"]) == network.listen_address([]) == "0.0.0.0"
    assert network.listen_address(["10.0.0.1", "fd00::2"]) == "::"
    if not any(":" in entry.address for entry in network.own_addresses()):
        pytest.skip("no IPv6 here")
    with bind_port("::", "both") as listener:
        port = listener.getsockname()[1]
        assert [connect_check(address, port, 1) for address in ("127.0.0.1", "::1")] == [None, None]


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind_port("127.0.0.1", "full") as listener:
        monkeypatch.setattr(network, "candidate_ports", lambda seed: iter([listener.getsockname()[1]] * 3))
        with pytest.raises(UserError, match=r"No free port at 127\.0\.0\.1"):
            bind_port("127.0.0.1", "full")


@failure("F007")
def test_an_address_of_another_host_is_refused_with_the_own_ones() -> None:
    with pytest.raises(UserError, match=r"203\.0\.113\.77 is not on this host .* has .*127\.0\.0\.1 \(lo"):
        bind_port("203.0.113.77", "x")


@failure("F018")
@failure("F028")
def test_a_connection_that_does_not_come_about_is_explained() -> None:
    with socket.socket() as bound:  # bound, but nobody listens
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert "refused" in (connect_check("127.0.0.1", port, 1) or "").lower()
        bound.listen(0)
        with contextlib.ExitStack() as waiting:  # a full backlog: the kernel drops what comes, as a firewall does
            for _ in range(4):
                client = waiting.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            assert "no answer within 0.2 s" in (connect_check("127.0.0.1", port, 0.2) or "")


@failure("F015")
@pytest.mark.parametrize("name", ["nosuch.invalid", "a..b"])
def test_a_name_that_does_not_resolve_is_said(name: str) -> None:
    assert f"cannot connect to {name} port 1" in (connect_check(name, 1, 1) or "")


def test_source_address() -> None:
    assert source_address_towards("127.0.0.1", 9) == "127.0.0.1"
    assert source_address_towards("nosuch.invalid", 9) is None


@failure("F061")
def test_visible_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3"}) == ["2", "3"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-1f,GPU-22"}) == ["MIG-1f", "GPU-22"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia1a"):
        (tmp_path / name).touch()
    monkeypatch.setattr(network, "Path", lambda _: tmp_path)
    assert visible_gpus({}) == ["0", "1", "2"]


def test_without_any_network_nothing_is_reachable() -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("an empty network namespace needs unshare and root")
    code = (
        "from trainpkg.launch.network import *; "
        "print(own_addresses(), reachable_addresses(), source_address_towards('10.0.0.1', 9), "
        "interface_environment('10.0.0.1', {}))"
    )
    answer = subprocess.run(["unshare", "-n", sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[] [] None {}\n"


def test_more_interfaces_than_fit_at_first() -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip to build interfaces")
    number = 300
    batch = "\n".join(f"addr add 10.1.{index // 250}.{index % 250 + 1}/32 dev lo" for index in range(number))
    code = "from trainpkg.launch.network import own_addresses; print(len({e.address for e in own_addresses()}))"
    script = f'ip link set lo up && ip -batch - && exec "{sys.executable}" -c "{code}"'
    answer = subprocess.run(["unshare", "-n", "sh", "-c", script], input=batch, capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"an own network namespace needs root: {answer.stderr.strip()[-80:]}")
    assert int(answer.stdout) == number + 2  # with 127.0.0.1 and ::1
