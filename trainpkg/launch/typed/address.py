"""HOST of `--dist-url`, as node 0 and as the others must find it; and the port there, held from the first moment."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from trainpkg.errors import UserError
from trainpkg.launch import network
from trainpkg.launch.ports import BACKLOG


def own_address(host: str, num_nodes: int, local: bool, env: Mapping[str, str]) -> tuple[str, str]:
    """(the address of node 0 that HOST means, a warning or nothing). Called on node 0.

    Raises:
        UserError: it is not this machine's, or leads each of several machines to itself (`local`: there is but one).
    """
    if network.is_loopback(host) and num_nodes > 1 and not local:
        raise UserError(_loopback(f"HOST of --dist-url is {host!r}", num_nodes))
    resolved = resolve(host)
    own = [entry.address for entry in network.own_addresses()]
    mine = [address for address in resolved if address in own and (num_nodes == 1 or not network.is_loopback(address))]
    if mine or local:
        return (mine or resolved)[0], ""
    if all(network.is_loopback(address) for address in resolved):
        if reachable := network.reachable_addresses():
            return reachable[0], (
                f"{host} is {', '.join(resolved)} on this machine (its hosts file says so), which others cannot reach; "
                f"{reachable[0]} is taken"
            )
        raise UserError(_loopback(f"{host} is {', '.join(resolved)} on this machine", num_nodes))
    have = ", ".join(network.reachable_addresses()) or "none"
    where_srun_ran = " (SLURM_LAUNCH_NODE_IPADDR is where srun was called, not node 0)"
    hint = where_srun_ran if env.get("SLURM_LAUNCH_NODE_IPADDR") in (host, *resolved) else ""
    named = "" if resolved == [host] else f" ({host})"
    raise UserError(
        f"address {', '.join(resolved)}{named} is not on this host {socket.gethostname()} (have {have}){hint}. Node 0 "
        "is the machine that has the address of --dist-url; any other needs a --node-rank of its own"
    )


def others_address(host: str, num_nodes: int, local: bool) -> list[str]:
    """The addresses under which another machine calls node 0. Raises UserError where they lead back to itself."""
    resolved = resolve(host)
    outside = [address for address in resolved if local or not network.is_loopback(address)]
    if not outside:
        said = f"HOST of --dist-url is {host!r}" + ("" if resolved == [host] else f", {', '.join(resolved)}")
        raise UserError(_loopback(f"{said} on {socket.gethostname()}", num_nodes))
    return outside


def resolve(host: str) -> list[str]:
    """All addresses of a name, each once. Raises UserError where there are none."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"HOST of --dist-url is {host!r}, which {socket.gethostname()} cannot resolve "
            f"({getattr(error, 'strerror', None) or error}). Give an IP address, or put it into the hosts file"
        ) from error
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def hold(address: str, port: int) -> socket.socket:
    """A listening socket there. Connections of an earlier launch that linger do not hinder it; a listener does."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "another program uses it (`ss -ltnp` tells which): take another port" if taken else str(error.strerror)
        raise UserError(
            f"port {port} of --dist-url cannot be opened at {address} on {socket.gethostname()}: {why}"
        ) from error
    return listener


def _loopback(said: str, num_nodes: int) -> str:
    return (
        f"{said}: with {num_nodes} nodes each would wait for itself. Give an address of node 0 that the others reach, "
        "or say --local where all of them are on this machine"
    )
