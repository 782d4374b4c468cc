"""Own addresses and interfaces, here and in an empty network."""

from __future__ import annotations

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
    check_interfaces,
    interface_environment,
    interface_of,
    is_loopback,
    match_nccl_interfaces,
    own_addresses,
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


INTERFACES = ["lo", "eno4", "eno41", "ib0", "docker0", "bare"]
ENTRIES = [("lo", "127.0.0.1"), ("eno4", "10.0.0.4"), ("eno41", "10.4.1.4"), ("ib0", "10.1.0.4"), ("ib0", "10.1.0.5")]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with these interfaces."""
    entries = [InterfaceAddress(*entry) for entry in [*ENTRIES, ("docker0", "172.17.0.1")]]
    monkeypatch.setattr(network, "own_addresses", lambda: entries)
    monkeypatch.setattr(network, "interface_names", lambda: INTERFACES)


@failure("F021")
@pytest.mark.parametrize("value", ["^lo,docker,veth", "nosuch0", "", " lo", "eno4,ib0", "=eno4", "eno"])
def test_a_wrong_interface_for_gloo_is_refused_with_the_names_there_are(machine: None, value: str) -> None:
    with pytest.raises(UserError, match=r"GLOO_SOCKET_IFNAME is .*has the interfaces lo, eno4, eno41, ib0") as caught:
        check_interfaces({"GLOO_SOCKET_IFNAME": value}, several_hosts=True)
    assert ("are NCCL's notation" in str(caught.value)) == bool(set(value) & set("^,="))


def test_an_interface_without_an_address_is_refused(machine: None) -> None:
    with pytest.raises(UserError, match="GLOO_SOCKET_IFNAME is 'bare', which has no address"):
        check_interfaces({"GLOO_SOCKET_IFNAME": "bare"}, several_hosts=False)


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("^lo,docker", ["eno4", "eno41", "ib0", "bare"]),
        ("eno4", ["eno4", "eno41"]),
        ("=eno4", ["eno4"]),
        ("ib,eno41", ["eno41", "ib0"]),
        ("^=lo,eno4", ["eno41", "ib0", "docker0", "bare"]),
        ("", INTERFACES),
    ],
)
def test_the_site_may_write_as_nccl_reads(machine: None, value: str, left: list[str]) -> None:
    assert match_nccl_interfaces(value, INTERFACES) == left
    check_interfaces({"NCCL_SOCKET_IFNAME": value}, several_hosts=True)


@failure("F024")
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NCCL_SOCKET_IFNAME": "=ib1"}, "NCCL_SOCKET_IFNAME is '=ib1', which none of them matches: this host"),
        ({"NCCL_SOCKET_IFNAME": "^lo,eno,ib,docker,bare"}, "which none of them matches"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, "GLOO_SOCKET_IFNAME is 'lo', whose addresses lead every host to itself"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, "NCCL_SOCKET_IFNAME is 'lo', whose addresses lead every host to itself"),
    ],
)
def test_interfaces_that_lead_nowhere_are_refused(machine: None, env: dict[str, str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        check_interfaces(env, several_hosts=True)
    assert words in str(caught.value)


def test_on_one_machine_loopback_is_fine(machine: None) -> None:
    check_interfaces({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}, several_hosts=False)


@failure("F022")
def test_ranks_are_at_the_first_address_of_their_interface(machine: None) -> None:
    """As gloo takes it; the route may have another one of the same interface."""
    assert network.advertised("10.1.0.5", {}) == InterfaceAddress("ib0", "10.1.0.4")
    assert network.advertised("10.1.0.5", {"GLOO_SOCKET_IFNAME": "eno4"}) == InterfaceAddress("eno4", "10.0.0.4")
    assert network.advertised("203.0.113.7", {}) == InterfaceAddress("", "203.0.113.7")


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
