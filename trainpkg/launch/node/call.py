"""A node's way to the coordinator."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

from trainpkg.errors import UserError
from trainpkg.launch import wire
from trainpkg.launch.network import validate_address, validate_port
from trainpkg.launch.reach import Streams, Unreached, connect_any
from trainpkg.launch.spec import Spec

# It listened before this node was started: what refuses for seconds, or drops packets twice, does so for ever.
GIVE_UP_REFUSED_S = 3.0
GIVE_UP_S = 7.0
CALLS_PER_S = 500  # that a busy first node answers at least: when thousands call at once, it may drop some at first


def parse_head(head: str) -> tuple[list[str], int]:
    """`10.0.0.1,10.1.0.1:6000` -> addresses and port."""
    names, _, port = head.rpartition(":")
    return [validate_address(name, "--head") for name in names.split(",")], validate_port(port, "--head")


async def call_head(head: str, secret: str, spec: Spec, say: Callable[[str], None]) -> Streams:
    """A connection to the coordinator, proven on both sides.

    Its addresses are tried until it is clear that none will do, at most for the roll call's time.
    Raises UserError with each address and why it did not do.
    """
    addresses, port = parse_head(head)
    limit_s = min(spec.timeouts.rollcall_s, GIVE_UP_S + spec.num_nodes / CALLS_PER_S)
    begin = time.monotonic()
    errors: dict[str, Unreached] = {}
    pause_s = 0.1
    while True:
        left = list(addresses)
        while left and (reached := await connect_any(left, port, errors)) is not None:
            address, streams = reached
            try:
                await wire.present(*streams, secret, spec.handshake)
            except (wire.Refused, OSError) as error:
                errors[address] = Unreached("foreign", str(error))
                streams[1].close()
                left.remove(address)
                continue
            say(f"reached the coordinator at {address} port {port}")
            return streams
        patience_s = min(limit_s, GIVE_UP_REFUSED_S) if all(e.definite for e in errors.values()) else limit_s
        if time.monotonic() > begin + patience_s:
            break
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)
    told = "; ".join(f"{address}: {why}" for address, why in errors.items())
    here = socket.gethostname()
    raise UserError(
        f"{here} cannot reach the coordinator, `launch` on the first node, at port {port} ({told}). By hand: "
        f"`nc -l {port}` on {spec.hosts[0]}, then `nc -v {addresses[0]} {port}` on {here}. Where the site leaves "
        "certain ports open between nodes, set launch.port to that range"
    )
