"""The network that an address of this machine lies in: what programs take that name an interface for several hosts."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable

from trainpkg.launch import network

_SIOCGIFNETMASK = 0x891B  # linux/sockios.h


def subnet_of(address: str) -> str | None:
    """`10.0.0.0/24` for an IPv4 address that this machine has, else None."""
    interface = network.interface_of(address)
    if not interface or ":" in address:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFNETMASK, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    mask = socket.inet_ntoa(answer[20:24])
    return str(ipaddress.ip_network(f"{address}/{mask}", strict=False))


def any_within(addresses: Iterable[str], subnet: str) -> bool:
    """Whether one of these addresses lies in the network."""
    net = ipaddress.ip_network(subnet)
    return any(ipaddress.ip_address(address.partition("%")[0]) in net for address in addresses)
