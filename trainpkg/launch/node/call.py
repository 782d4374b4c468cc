"""A node's outgoing connections: to the coordinator, and to the port that node 0 holds for the ranks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from trainpkg.errors import UserError
from trainpkg.launch import wire
from trainpkg.launch.network import connect_check, validate_address, validate_port
from trainpkg.launch.spec import Spec

CONNECT_TIMEOUT_S = 3.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def parse_head(head: str) -> tuple[list[str], int]:
    """`10.0.0.1,10.1.0.1:6000` -> addresses and port."""
    names, _, port = head.rpartition(":")
    return [validate_address(name, "--head") for name in names.split(",")], validate_port(port, "--head")


async def call_head(head: str, secret: str, spec: Spec, say: Callable[[str], None]) -> Streams:
    """A connection to the coordinator, proven on both sides.

    Its addresses are tried in turn until the roll call's time is over; it listened before this node was started.
    Raises UserError with each address and why it did not do.
    """
    addresses, port = parse_head(head)
    end = time.monotonic() + spec.timeouts.rollcall_s
    errors: dict[str, str] = {}
    pause = 0.1
    while True:
        for address in addresses:
            try:
                streams = await _connect(address, port)
            except (OSError, TimeoutError) as error:
                errors[address] = f"no answer within {CONNECT_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else (
                    error.strerror or str(error)
                )  # fmt: skip
                continue
            try:
                await wire.present(*streams, secret, spec.handshake)
            except (wire.Refused, OSError) as error:
                errors[address] = str(error)
                streams[1].close()
                continue
            say(f"reached the coordinator at {address} port {port}")
            return streams
        if time.monotonic() > end:
            break
        await asyncio.sleep(pause)
        pause = min(2 * pause, 2.0)
    told = "; ".join(f"{address}: {why}" for address, why in errors.items())
    raise UserError(
        f"{socket.gethostname()} cannot reach the coordinator on the first node at port {port} within "
        f"{spec.timeouts.rollcall_s:g} s ({told}). By hand: `nc -l {port}` there, `nc -v {addresses[0]} {port}` here; "
        "a firewall that closes high ports between nodes is the usual reason"
    )


async def _connect(address: str, port: int) -> Streams:
    opening = asyncio.open_connection(address, port, limit=wire.MAX_LINE)
    return await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)


async def probe(address: str, port: int, token: str) -> str | None:
    """None when the listener at this address is the one that says the token, else why not."""
    try:
        reader, writer = await _connect(address, port)
    except (OSError, TimeoutError):
        return await asyncio.to_thread(connect_check, address, port, 1.0) or "reached only at the second try"
    try:
        said = await asyncio.wait_for(reader.readline(), CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError):
        said = b""
    finally:
        writer.close()
    return None if said.decode(errors="replace").strip() == token else "another program listens there"


class Greeter:
    """Holds the port of the ranks' store open and says a token to whoever connects, until the port is handed on."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        self.listener, self._greeting = listener, token.encode() + b"\n"
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._greet)

    def _greet(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    connection.send(self._greeting)

    def hand_on(self) -> socket.socket:
        """The listening socket, greeting no more."""
        asyncio.get_running_loop().remove_reader(self.listener.fileno())
        self._greet()  # whoever is still in the backlog must not meet the store
        self.listener.setblocking(True)
        return self.listener
