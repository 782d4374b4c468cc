"""This machine's side of the network: own addresses and interfaces, a port that is held, who can be reached, GPUs.

Standard library only and no `ip` program. Decides nothing about ranks. A port is bound before anybody hears of it and
its socket stays open until rank 0 has it: a port that was only tested belongs to whoever comes next.
"""

from __future__ import annotations

import array
import re
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainpkg.errors import UserError
from trainpkg.launch.slurm.grammar import MAX_NAME_LENGTH, parse_devices, parse_int, quote

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


def interface_names() -> list[str]:
    """This machine's interfaces, aliases such as eth0:1 included."""
    names = [name for _, name in socket.if_nameindex()]
    return names + sorted({entry.interface for entry in own_addresses()} - {"", *names})


def check_interfaces(env: Mapping[str, str], several_hosts: bool) -> None:
    """Hold the interfaces that the user or the site has chosen against those of this machine.

    Raises:
        UserError: GLOO_SOCKET_IFNAME is not the name of one of them, NCCL_SOCKET_IFNAME leaves none, or one of the two
            leads every one of several hosts to itself.
    """
    names = interface_names()
    have = f"this host has the interfaces {', '.join(names)}"
    wanted = {name: env[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name in env}
    matched = {name: [value] for name, value in wanted.items() if value in names}
    for name, value in wanted.items():
        if name == "NCCL_SOCKET_IFNAME":
            matched[name] = match_nccl_interfaces(value, names)
            if not matched[name]:
                raise UserError(
                    f"{name} is {quote(value)}, which none of them matches: {have}. `=NAME` means exactly this one, "
                    "NAME a beginning, `^` all others; left out, each node takes the interface that leads to the first"
                )
        elif value not in names:
            nccl = " `^`, `=` and lists are NCCL's notation: gloo takes one name." if set(value) & set("^=,") else ""
            raise UserError(
                f"{name} is {quote(value)}, but {have}.{nccl} Name one of them, exactly, or leave it out: each node "
                "then takes the interface that leads to the first"
            )
        elif not any(entry.interface == value for entry in own_addresses()):
            raise UserError(f"{name} is {quote(value)}, which has no address on this host")
    for name, chosen in matched.items():
        if several_hosts and all(_leads_home(interface) for interface in chosen):
            raise UserError(
                f"{name} is {quote(wanted[name])}, whose addresses lead every host to itself: ranks on other hosts "
                f"would wait for themselves. Leave it out, or name another one: {have}"
            )


def match_nccl_interfaces(value: str, names: Iterable[str]) -> list[str]:
    """The interfaces that NCCL_SOCKET_IFNAME leaves: beginnings, `=` exact names, `^` all but these."""
    but, exact = value.startswith("^"), value.removeprefix("^").startswith("=")
    patterns = [pattern for pattern in value.removeprefix("^").removeprefix("=").split(",") if pattern]
    if not patterns:
        return list(names)

    def matches(name: str) -> bool:
        return any(name == pattern if exact else name.startswith(pattern) for pattern in patterns)

    return [name for name in names if matches(name) != but]


def _leads_home(interface: str) -> bool:
    own = [entry.address for entry in own_addresses() if entry.interface == interface]
    return bool(own) and all(is_loopback(address) for address in own)


def interface_environment(address: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold gloo and NCCL to the interface with this address; what the user set stays."""
    interface = interface_of(address)
    if not interface:
        return {}
    wanted = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}  # `=`: eth1 must not match eth10
    return {name: value for name, value in wanted.items() if name not in env}


def advertised(source: str, env: Mapping[str, str]) -> InterfaceAddress:
    """The address at which this node's ranks wait for the others: gloo takes the first one of its interface.

    `source`: the own address from which packets to the first node leave.
    """
    interface = env.get("GLOO_SOCKET_IFNAME") or interface_of(source) or ""
    own = [entry for entry in own_addresses() if entry.interface == interface]
    return own[0] if own else InterfaceAddress(interface, source)


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
