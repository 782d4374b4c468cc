"""Whether another machine can be reached, and if not, what the silence or refusal means.

The kernel tells four cases apart, which lead people to four different places: a refusal (the machine is up), a
rejection by a firewall, no machine at that address, and silence. Decides nothing; knows no roll call.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Sequence

from trainpkg.launch.wire import MAX_LINE

CONNECT_TIMEOUT_S = 4.0  # the kernel gives up looking for a machine on its own network after 3 s
AT_ONCE_S = 1.0  # a rejection travels as fast as a packet; that nobody answers is known seconds later
STAGGER_S = 0.5  # between addresses of one machine: the first one usually does
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Unreached(Exception):
    """A connection that did not come about. `kind`: refused, rejected, absent, silent, no_route, own_firewall, name,
    foreign (somebody else listens there), other."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind

    @property
    def definite(self) -> bool:
        """Whether somebody said no, as opposed to nobody having said anything yet."""
        return self.kind in ("refused", "rejected", "no_route", "own_firewall")


def explain(error: BaseException, seconds: float) -> Unreached:
    """What a failed connect means, given how long it took to fail."""
    if isinstance(error, TimeoutError) and getattr(error, "errno", None) is None:
        return Unreached("silent", f"no answer within {seconds:.0f} s: a firewall drops it, or the machine is off")
    if isinstance(error, socket.gaierror):
        return Unreached("name", f"the name cannot be resolved ({error.strerror})")
    if isinstance(error, UnicodeError):
        return Unreached("name", f"the name cannot be resolved ({error})")
    number = getattr(error, "errno", None)
    said = os.strerror(number) if number else str(error)  # asyncio writes its own words over the system's
    if number == errno.ECONNREFUSED:
        return Unreached("refused", f"{said}: the machine is up, but nobody listens there, or a firewall says so")
    if number in (errno.EHOSTUNREACH, errno.EACCES, errno.ENETUNREACH) and seconds < AT_ONCE_S:
        if number == errno.ENETUNREACH:
            return Unreached("no_route", f"{said}: this machine has no route to that network")
        return Unreached("rejected", f"{said}, at once: a firewall there rejects it, as firewalld does")
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return Unreached("absent", f"{said}, after {seconds:.0f} s: no machine answers at that address")
    if number == errno.EPERM:
        return Unreached("own_firewall", f"{said}: this machine's own firewall does not let it out")
    if number == errno.ETIMEDOUT:
        return Unreached("silent", f"no answer within {seconds:.0f} s: a firewall drops it, or the machine is off")
    return Unreached("other", said)


async def connect(address: str, port: int, timeout_s: float = CONNECT_TIMEOUT_S) -> Streams:
    """A connection, or Unreached."""
    begin = time.monotonic()
    try:
        streams = await asyncio.wait_for(asyncio.open_connection(address, port, limit=MAX_LINE), timeout_s)
    except (OSError, UnicodeError) as error:  # TimeoutError is an OSError; UnicodeError: a name that IDNA refuses
        raise explain(error, time.monotonic() - begin) from error
    ends = [streams[1].get_extra_info(name) for name in ("sockname", "peername")]
    if ends[0] == ends[1]:  # a free local port can connect to itself
        streams[1].close()
        raise Unreached("refused", "nobody listens there")
    return streams


async def connect_any(addresses: Sequence[str], port: int, errors: dict[str, Unreached]) -> tuple[str, Streams] | None:
    """A connection to the first of one machine's addresses that answers; an unanswered one delays the next little.

    Reasons of those that do not go into `errors`. None: none of them.
    """
    waiting: dict[asyncio.Task[Streams], str] = {}
    left = list(addresses)
    try:
        while left or waiting:
            if left:
                address = left.pop(0)
                waiting[asyncio.ensure_future(connect(address, port))] = address
            done, _ = await asyncio.wait(
                waiting, timeout=STAGGER_S if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                address = waiting.pop(task)
                error = task.exception()
                if error is None:
                    return address, task.result()
                if not isinstance(error, Unreached):
                    raise error
                errors[address] = error
    finally:
        for task in waiting:
            task.cancel()
            task.add_done_callback(_drop)
    return None


def _drop(task: asyncio.Task[Streams]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[1].close()


async def expect_token(address: str, port: int, token: str) -> str | None:
    """None when the listener at this address is the one that says the token, else why not."""
    try:
        reader, writer = await connect(address, port)
    except Unreached as error:
        return str(error)
    try:
        said = await asyncio.wait_for(reader.readline(), CONNECT_TIMEOUT_S)
    except (OSError, ValueError):
        said = b""
    finally:
        writer.close()
    return None if said.decode(errors="replace").strip() == token else "another program listens there"


async def knock(host: str) -> str:
    """Whether a machine is there at all, by a connection to a port that is open or refused on a machine that is up."""
    try:
        (await connect(host, 22))[1].close()
    except Unreached as error:
        return {
            "refused": "its machine is up (it refuses a connection)",
            "rejected": "its machine is up (a firewall rejects a connection)",
            "absent": "its machine is not there: none answers at its address",
            "silent": "its machine does not answer at all: it is off, or a firewall drops everything",
            "name": f"its name cannot be resolved on {socket.gethostname()}",
        }.get(error.kind, str(error))
    return "its machine is up (it takes connections)"
