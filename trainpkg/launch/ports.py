"""Ports that this machine listens at: chosen from a seed, bound before anybody hears of them, and held.

A port that was only tested belongs to whoever comes next, so every function that finds one returns the open socket.
Which address others reach it at is network.py's and the roll call's business.
"""

from __future__ import annotations

import errno
import hashlib
import math
import socket
from collections.abc import Iterator
from pathlib import Path

from trainpkg.errors import UserError
from trainpkg.launch.network import own_addresses, validate_address

FIRST_PORT = 10_000  # below lie Slurm's daemons and most services
LAST_PORT = 32_767  # Linux hands out 32768-60999 to outgoing connections, where a port can vanish at any time
BACKLOG = 16_384  # every node and rank connects within a second; the kernel cuts it to net.core.somaxconn
MAX_TRIES = 512

Range = tuple[int, int]  # first and last port


def ephemeral_range() -> Range:
    """The ports that the kernel gives to outgoing connections, and to listeners that ask for any (gloo's, NCCL's)."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return LAST_PORT + 1, 60_999


def port_seed(job_id: str | None, attempt: int = 1, generation: int = 0) -> str:
    """What tells this start of the ranks from all others that may share a node with it.

    Each task of a Slurm array, and each part of a heterogeneous job, has a job id of its own.
    """
    return f"{job_id or 'local'}/{attempt}/{generation}"


def candidate_ports(seed: str, within: Range = (FIRST_PORT, LAST_PORT)) -> Iterator[int]:
    """Every port of the range once, in an order that the seed decides, the same on every machine."""
    digest = hashlib.sha256(seed.encode()).digest()
    size = within[1] - within[0] + 1
    port, stride = int.from_bytes(digest[:8]) % size, int.from_bytes(digest[8:16]) % size
    while math.gcd(stride, size) != 1:
        stride += 1
    for _ in range(size):
        yield within[0] + port
        port = (port + stride) % size


def bind_port(address: str, seed: str, given: Range | None = None) -> socket.socket:
    """A listening socket on the first of the seed's ports that is free at `address`. The caller keeps it open.

    Without `given` (launch.port), ports that this kernel gives to outgoing connections are passed over, unless it gives
    out all of them, and so are those on which old connections linger (no SO_REUSEADDR). Ports that a site names may be
    few: those that an earlier generation of ranks has just left are taken again. At `::` it takes IPv4 as well.

    Raises:
        UserError: the address is not this machine's, or no port is free.
    """
    tries = 0
    for port in _usable(seed, given):
        tries += 1
        if tries > MAX_TRIES:
            break
        try:
            return _listen(address, port, reuse=given is not None)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise UserError(_bind_failure(address, port, error)) from error
    if given is None:
        raise UserError(f"No free port at {address}: {MAX_TRIES} between {FIRST_PORT} and {LAST_PORT} are all in use.")
    raise UserError(
        f"launch.port = {describe(given)}: no free port on {socket.gethostname()}, another program (of this user or "
        f"another job on this node) listens at each. `ss -ltnp` there shows which; give a wider range"
    )


def hold_port(address: str, seed: str) -> socket.socket:
    """A socket that keeps a free port from all others, and that nobody can connect to, until it is closed."""
    for port in _usable(seed, None):
        held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind((address, port))
            return held
        except OSError:
            held.close()
    raise UserError(f"No free port at {address} between {FIRST_PORT} and {LAST_PORT}.")


def bind_any_port(address: str) -> socket.socket:
    """A listening socket on a port of the kernel's choice, as those on which gloo and NCCL exchange data."""
    return _listen(address, 0)


def describe(given: Range) -> str:
    """As it is written in the config."""
    return str(given[0]) if given[0] == given[1] else f"{given[0]}-{given[1]}"


def warnings(given: Range | None) -> list[str]:
    """What speaks against the ports that a site or user has fixed."""
    if given is None:
        return []
    found = []
    if given[0] == given[1]:
        found.append(
            f"launch.port = {given[0]} is a single port: a second job on the first node fails with 'address in use', "
            "and the roll call takes another one, which a firewall must let pass too. Give a range, "
            f"such as {given[0]}-{min(65_535, given[0] + 99)}"
        )
    low, high = ephemeral_range()
    if given[0] <= high and given[1] >= low:
        found.append(
            f"launch.port = {describe(given)} touches {low}-{high}, from which this kernel takes the ports of outgoing "
            "connections: any program may have one of them at any time. Choose lower ones"
        )
    return found


def _usable(seed: str, given: Range | None) -> Iterator[int]:
    if given is not None:
        yield from candidate_ports(seed, given)
        return
    low, high = ephemeral_range()
    whole = low <= FIRST_PORT and high >= LAST_PORT
    for port in candidate_ports(seed):
        if whole or not low <= port <= high:
            yield port


def _listen(address: str, port: int, reuse: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in validate_address(address, "The address to listen at") else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4 too
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_failure(address: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        have = ", ".join(f"{entry.address} ({entry.interface})" for entry in own_addresses()) or "none"
        return f"The address {address} is not on this host {socket.gethostname()}, which has {have}."
    return f"Cannot listen at {address} port {port}: {error.strerror}."
