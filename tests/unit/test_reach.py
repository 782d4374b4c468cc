"""Connections that do not come about: what each way of failing means, and the token that tells listeners apart."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Awaitable, Iterator
from typing import TypeVar

import pytest

from trainpkg.launch import reach
from trainpkg.launch.node.prove import Greeter
from trainpkg.launch.reach import Unreached, connect, connect_any, expect_token, explain

failure = pytest.mark.failure
T = TypeVar("T")


def run(work: Awaitable[T]) -> T:
    async def within() -> T:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(within())


@contextlib.contextmanager
def silent_listener() -> Iterator[int]:
    """A full backlog: the kernel drops what comes, as a firewall does."""
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(socket.socket())
        bound.bind(("127.0.0.1", 0))
        bound.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(bound.getsockname())
        yield bound.getsockname()[1]


@failure("F018")
@failure("F028")
@pytest.mark.parametrize(
    ("error", "seconds", "kind", "words"),
    [
        (OSError(errno.ECONNREFUSED, "Connection refused"), 0.0, "refused", "the machine is up, but nobody listens"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), 0.01, "rejected", "at once: a firewall there rejects it"),
        (OSError(errno.EACCES, "Permission denied"), 0.01, "rejected", "at once: a firewall there rejects it"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), 3.1, "absent", "after 3 s: no machine answers at that"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), 0.0, "no_route", "no route to that network"),
        (OSError(errno.EPERM, "Operation not permitted"), 0.0, "own_firewall", "this machine's own firewall"),
        (OSError(errno.ETIMEDOUT, "Connection timed out"), 130.0, "silent", "no answer within 130 s: a firewall drops"),
        (TimeoutError(), 4.0, "silent", "no answer within 4 s: a firewall drops it, or the machine is off"),
        (socket.gaierror(-2, "Name or service not known"), 0.0, "name", "the name cannot be resolved"),
        (OSError(errno.EMFILE, "Too many open files"), 0.0, "other", "Too many open files"),
    ],
)
def test_what_a_failed_connection_means(error: OSError, seconds: float, kind: str, words: str) -> None:
    found = explain(error, seconds)
    assert found.kind == kind
    assert words in str(found)


def test_refusal_silence_and_names_are_told_apart() -> None:
    with socket.socket() as bound:  # bound, but nobody listens
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(Unreached, match="Connection refused") as refused:
            run(connect(*bound.getsockname()))
    with silent_listener() as port, pytest.raises(Unreached, match="no answer within") as silent:
        run(connect("127.0.0.1", port, 0.3))
    kinds = [refused.value.kind, silent.value.kind]
    for name in ("nosuch.invalid", "a..b"):
        with pytest.raises(Unreached, match="cannot be resolved") as unnamed:
            run(connect(name, 1))
        kinds.append(unnamed.value.kind)
    assert kinds == ["refused", "silent", "name", "name"]


def test_an_address_without_an_answer_delays_the_next_one_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(address: str, port: int, timeout_s: float = 9.0) -> reach.Streams:
        if address != "127.0.0.1":
            await asyncio.sleep(30)
        return await connect(address, port)

    monkeypatch.setattr(reach, "connect", slow)

    async def race(port: int) -> str:
        found = await connect_any(["192.0.2.1", "192.0.2.2", "127.0.0.1"], port, {})
        assert found is not None
        found[1][1].close()
        return found[0]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        begin = time.monotonic()
        assert run(race(listener.getsockname()[1])) == "127.0.0.1"
        assert 2 * reach.STAGGER_S < time.monotonic() - begin < 10


def test_when_no_address_answers_each_has_its_reason() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        errors: dict[str, Unreached] = {}
        assert run(connect_any(["127.0.0.1", "nosuch.invalid"], bound.getsockname()[1], errors)) is None
    assert {address: error.kind for address, error in errors.items()} == {
        "127.0.0.1": "refused",
        "nosuch.invalid": "name",
    }


@failure("F032")
def test_a_listener_of_another_job_does_not_pass_for_ours() -> None:
    async def ask() -> list[str | None]:
        with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as foreign:
            greeter = Greeter(ours, "token")
            port, other = ours.getsockname()[1], foreign.getsockname()[1]
            found = [await expect_token("127.0.0.1", port, said) for said in ("token", "other token")]
            greeter.hand_on()
            return [*found, await expect_token("127.0.0.1", other, "token")]

    good, wrong, foreign = run(ask())
    assert good is None
    assert wrong == foreign == "another program listens there"


def test_a_port_that_connects_to_itself_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client on the port's own machine may be given that very port as its own end."""

    async def own(address: str, port: int, **_: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with socket.socket() as probe:
            probe.bind((address, 0))
            probe.connect(probe.getsockname())
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader()
            transport, protocol = await loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(reader),
                sock=socket.fromfd(probe.fileno(), probe.family, probe.type),
            )
            return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    monkeypatch.setattr(asyncio, "open_connection", own)
    with pytest.raises(Unreached, match="nobody listens there"):
        run(connect("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("refused", "machine is up"),
        ("rejected", "machine is up"),
        ("absent", "not there"),
        ("silent", "does not answer at all"),
    ],
)
def test_knocking_tells_whether_a_machine_is_there(kind: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(address: str, port: int) -> reach.Streams:
        raise Unreached(kind, os.strerror(1))

    monkeypatch.setattr(reach, "connect", refuse)
    assert words in run(reach.knock("n3"))
