"""This machine's side of the network: own addresses and interfaces, a port that is held, who can be reached, GPUs.

Standard library only and no `ip` program. Decides nothing about ranks. A port is bound before anybody hears of it and
its socket stays open until rank 0 has it: a port that was only tested belongs to whoever comes next.
"""

from __future__ import annotations

import array
import errno
import hashlib
import math
import re
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainpkg.errors import UserError
from trainpkg.launch.slurm.grammar import MAX_NAME_LENGTH, parse_devices, parse_int, quote

FIRST_PORT = 10_000  # below lie Slurm's daemons and most services
LAST_PORT = 32_767  # Linux hands out 32768-60999 to outgoing connections, where a port can vanish at any time
BACKLOG = 16_384  # every node and rank connects within a second; the kernel cuts it to net.core.somaxconn
MAX_TRIES = 512

_SIOCGIFCONF = 0x8912  # linux/sockios.h: all IPv4 addresses of all interfaces
_IFREQ_BYTES = 40
_VIRTUAL = re.compile(r"(docker|veth|virbr|br-|cni|flannel|podman|lxc|lxd|kube|dummy|tun|tap)")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.\-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True)
class InterfaceAddress:
    """One address of one of this machine's interfaces."""

    interface: str
    address: str


def own_addresses() -> list[InterfaceAddress]:
    """All addresses of this machine, IPv4 first, in the kernel's order; link-local IPv6 left out."""
    if sys.platform != "linux":
        infos = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        return [InterfaceAddress("", str(info[4][0])) for info in infos]
    return [*_ipv4_addresses(), *_ipv6_addresses()]


def reachable_addresses() -> list[str]:
    """Addresses under which other machines may reach this one, the likeliest first; empty without a network.

    No loopback. Bridges of containers and virtual machines (the same 172.17.0.1 on every host) come last, and the
    address of the default route first.
    """
    default = source_address_towards("198.51.100.1", 9)  # RFC 5737: an address nobody has; only the route is looked up
    found = [entry for entry in own_addresses() if not is_loopback(entry.address)]
    found.sort(
        key=lambda entry: (bool(_VIRTUAL.match(entry.interface)), ":" in entry.address, entry.address != default)
    )
    return [entry.address for entry in found]


def listen_address(addresses: Iterable[str]) -> str:
    """Where to listen to be reached at all of these: `::`, which `bind_port` opens for IPv4 too, if one is IPv6."""
    return "::" if any(":" in address for address in addresses) else "0.0.0.0"


def interface_of(address: str) -> str | None:
    """The interface that has this address, or None where this machine does not have it."""
    return next((entry.interface for entry in own_addresses() if entry.address == address), None)


def source_address_towards(host: str, port: int) -> str | None:
    """The own address from which packets to `host` leave, or None without a route. Sends nothing (UDP connect)."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, target in infos:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def is_loopback(address: str) -> bool:
    """Whether the address leads every node to itself: loopback, `localhost`, or the unspecified address."""
    name = address.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or name.startswith("localhost."):
        return True
    if name.startswith("::ffff:") and "." in name:
        name = name.removeprefix("::ffff:")
    try:
        return socket.inet_pton(socket.AF_INET, name)[0] in (127, 0)
    except (OSError, ValueError):
        pass
    try:
        return int.from_bytes(socket.inet_pton(socket.AF_INET6, name)) in (0, 1)
    except (OSError, ValueError):
        return False


def validate_address(value: str, name: str) -> str:
    """The value if it is a host name, IPv4 or IPv6 address; blanks, ports, brackets and typing errors are refused."""
    if ":" in value and _is_ipv6(value):
        return value
    if re.fullmatch(r"[0-9.]+", value):
        try:
            socket.inet_pton(socket.AF_INET, value)
            return value
        except OSError:
            pass
    elif len(value) <= MAX_NAME_LENGTH and _NAME.fullmatch(value) and ".." not in value:
        return value
    raise UserError(
        f"{name} is {quote(value)}, which is neither a host name nor an IPv4 or IPv6 address. "
        "Write the address alone, without blanks, brackets or a port."
    )


def validate_port(value: str, name: str) -> int:
    """The port number of a string of ASCII digits, or a UserError."""
    return parse_int(value, name, low=1, high=65_535)


def validate_interface(value: str, name: str) -> str:
    """The value if it is one interface of this machine; gloo knows no lists and no `^lo` as NCCL does."""
    names = [interface for _, interface in socket.if_nameindex()]
    if value not in names and value not in {entry.interface for entry in own_addresses()}:
        raise UserError(
            f"{name} is {quote(value)}, but this host has the interfaces {', '.join(names)}. Name one of them, exactly."
        )
    return value


def interface_environment(address: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold gloo and NCCL to the interface with this address; what the user set stays.

    Raises:
        UserError: the user's GLOO_SOCKET_IFNAME is no interface of this host.
    """
    if "GLOO_SOCKET_IFNAME" in env:
        validate_interface(env["GLOO_SOCKET_IFNAME"], "GLOO_SOCKET_IFNAME")
    interface = interface_of(address)
    if not interface:
        return {}
    wanted = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}  # `=`: eth1 must not match eth10
    return {name: value for name, value in wanted.items() if name not in env}


def ephemeral_range() -> tuple[int, int]:
    """The ports, first and last, that the kernel gives to outgoing connections."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return LAST_PORT + 1, 60_999


def port_seed(job_id: str | None, array_task: int | None = None, attempt: int = 1, generation: int = 0) -> str:
    """What tells this start of the ranks from all others that may share a node with it."""
    return f"{job_id or 'local'}/{'' if array_task is None else array_task}/{attempt}/{generation}"


def candidate_ports(seed: str) -> Iterator[int]:
    """Every port from FIRST_PORT to LAST_PORT once, in an order that the seed decides, the same on every machine."""
    digest = hashlib.sha256(seed.encode()).digest()
    size = LAST_PORT - FIRST_PORT + 1
    port, stride = int.from_bytes(digest[:8]) % size, int.from_bytes(digest[8:16]) % size
    while math.gcd(stride, size) != 1:
        stride += 1
    for _ in range(size):
        yield FIRST_PORT + port
        port = (port + stride) % size


def bind_port(address: str, seed: str) -> socket.socket:
    """A listening socket on the first of the seed's ports that is free at `address`. The caller keeps it open.

    Ports that this kernel gives to outgoing connections are passed over, unless it gives out all of them. Without
    SO_REUSEADDR: a port on which old connections linger is not fresh. At `::` it takes IPv4 connections as well.

    Raises:
        UserError: the address is not this machine's, or no port is free.
    """
    family = socket.AF_INET6 if ":" in validate_address(address, "The address to listen at") else socket.AF_INET
    low, high = ephemeral_range()
    whole = low <= FIRST_PORT and high >= LAST_PORT
    tries = 0
    for port in candidate_ports(seed):
        if low <= port <= high and not whole:
            continue
        tries += 1
        if tries > MAX_TRIES:
            break
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if address == "::":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4 too
            listener.bind((address, port))
            listener.listen(BACKLOG)
            return listener
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise UserError(_bind_failure(address, port, error)) from error
    raise UserError(f"No free port at {address}: {MAX_TRIES} between {FIRST_PORT} and {LAST_PORT} are all in use.")


def connect_check(address: str, port: int, timeout_s: float) -> str | None:
    """None if a TCP connection comes about within the time, else one sentence that says why it does not."""
    try:
        with socket.create_connection((address, port), timeout_s) as connection:
            if connection.getsockname() != connection.getpeername():  # a free local port can connect to itself
                return None
            reason = "nobody listens"
    except socket.gaierror as error:
        reason = f"the name cannot be resolved ({error.strerror})"
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s, as behind a firewall or on a network without a route back"
    except (OSError, UnicodeError) as error:  # the second: a name that IDNA refuses
        reason = getattr(error, "strerror", None) or str(error)
    return f"{socket.gethostname()} cannot connect to {address} port {port}: {reason}."


def visible_gpus(env: Mapping[str, str]) -> list[str]:
    """The GPUs that a process with this environment may use, as CUDA_VISIBLE_DEVICES would name them; no torch.

    Without that variable the device files are counted (NVIDIA's driver makes one /dev/nvidiaN per GPU), which says
    nothing of MIG slices and of control groups; the ranks find out.
    """
    if "CUDA_VISIBLE_DEVICES" in env:
        return parse_devices(env["CUDA_VISIBLE_DEVICES"])
    return [str(index) for index in range(_num_device_files(Path("/dev")))]


def _num_device_files(folder: Path) -> int:
    return sum(1 for path in folder.glob("nvidia*") if re.fullmatch(r"nvidia[0-9]+", path.name))


def _is_ipv6(value: str) -> bool:
    address, percent, zone = value.partition("%")
    try:
        socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return False
    return not percent or re.fullmatch(r"[A-Za-z0-9_.\-]{1,15}", zone) is not None


def _bind_failure(address: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        have = ", ".join(f"{entry.address} ({entry.interface})" for entry in own_addresses()) or "none"
        return f"The address {address} is not on this host {socket.gethostname()}, which has {have}."
    return f"Cannot listen at {address} port {port}: {error.strerror}."


def _ipv4_addresses() -> list[InterfaceAddress]:
    import fcntl  # not on every platform

    size = 64 * _IFREQ_BYTES
    while True:  # the kernel fills what it is given: a full buffer may have cut the list
        buffer = array.array("B", bytes(size))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe, _SIOCGIFCONF, struct.pack("iP", size, buffer.buffer_info()[0]))
        used = struct.unpack("iP", answer)[0]
        if used < size:
            break
        size *= 4
    records = [buffer[start : start + _IFREQ_BYTES].tobytes() for start in range(0, used, _IFREQ_BYTES)]
    return [InterfaceAddress(raw[:16].split(b"\0")[0].decode(), socket.inet_ntoa(raw[20:24])) for raw in records]


def _ipv6_addresses() -> list[InterfaceAddress]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:  # a kernel without IPv6
        return []
    rows = [line.split() for line in lines]
    return [
        InterfaceAddress(row[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])))
        for row in rows
        if len(row) == 6 and row[3] != "20"  # scope 20 is link-local
    ]
