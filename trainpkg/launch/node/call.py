"""A node's way to the coordinator."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

from trainpkg.errors import UserError
from trainpkg.launch import wire
from trainpkg.launch.network import validate_address, validate_port
from trainpkg.launch.reach import Streams, connect_any
from trainpkg.launch.spec import Spec

GIVE_UP_S = 7.0  # it listened before this node was started: what refuses or drops twice does so for ever
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
    patience_s = min(spec.timeouts.rollcall_s, GIVE_UP_S + spec.num_nodes / CALLS_PER_S)
    end = time.monotonic() + patience_s
    errors: dict[str, str] = {}
    pause_s = 0.1
    while True:
        left = list(addresses)
        while left and (reached := await connect_any(left, port, errors)) is not None:
            address, streams = reached
            try:
                await wire.present(*streams, secret, spec.handshake)
            except (wire.Refused, OSError) as error:
                errors[address] = str(error)
                streams[1].close()
                left.remove(address)
                continue
            say(f"reached the coordinator at {address} port {port}")
            return streams
        if time.monotonic() > end:
            break
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)
    told = "; ".join(f"{address}: {why}" for address, why in errors.items())
    raise UserError(
        f"{socket.gethostname()} cannot reach the coordinator on the first node at port {port} ({told}). By hand: "
        f"`nc -l {port}` on {spec.hosts[0]}, then `nc -v {addresses[0]} {port}` here. Where the site leaves certain "
        "ports open between nodes, set launch.port to that range"
    )
