"""A node's part in proving that all nodes reach each other: holds ports open, tries others', tells its own address.

The coordinator (head/proof.py) says what to try and judges. Every listener greets with a token, so that an address
which leads elsewhere (a bridge that every host has, another job's port) does not pass for this job's.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Callable, Mapping

from trainpkg.errors import UserError
from trainpkg.launch import names, network, ports
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.reach import expect_token
from trainpkg.launch.spec import Spec
from trainpkg.launch.wire import Message

KINDS = ("open", "probe", "choose", "ring")
RESOLVE_TIMEOUT_S = 10.0


class Greeter:
    """Holds a port open and says a token to whoever connects, until the port is handed on."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        self.listener, self._greeting = listener, token.encode() + b"\n"
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._greet)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def _greet(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    # what lingers of it must not keep the port from a program that binds it once it is let go
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    connection.send(self._greeting)

    def hand_on(self) -> socket.socket:
        """The listening socket, greeting no more."""
        asyncio.get_running_loop().remove_reader(self.listener.fileno())
        self._greet()  # whoever is still in the backlog must not meet the store
        self.listener.setblocking(True)
        return self.listener

    def close(self) -> None:
        """Close it here; whoever it was handed on to keeps it open."""
        asyncio.get_running_loop().remove_reader(self.listener.fileno())
        self.listener.close()


class Prover:
    """Answers the coordinator's questions. Of node 0 it also holds the port of the ranks' store."""

    def __init__(self, spec: Spec, facts: NodeFacts, env: Mapping[str, str]) -> None:
        self.spec, self.facts, self.env = spec, facts, env
        self.store: Greeter | None = None
        self.handed: socket.socket | None = None  # the store's, given to rank 0
        self.data: Greeter | None = None  # on a port of the kernel's choice, as gloo's and NCCL's are

    async def answer(self, message: Message) -> Message:
        """The answer to one of KINDS."""
        kind, about = message["type"], {"generation": message["generation"]}
        if kind == "open":
            return {"type": "opened"} | about | self._open(message) | await self._resolve(message)
        if kind == "choose":
            own = self._own(message["address"])
            return {"type": "chosen", "address": own.address, "interface": own.interface} | about
        targets = {str(key): (address, port) for key, address, port in message["targets"]}
        found = await asyncio.gather(*(expect_token(*target, message["token"]) for target in targets.values()))
        return {"type": f"{kind}_done", "errors": dict(zip(targets, found, strict=True))} | about

    def _open(self, message: Message) -> Message:
        self.close()
        address = "127.0.0.1" if self.spec.simulated else network.listen_address(self.facts.addresses)
        opened = {}
        try:
            if self.facts.index == 0:
                listener = ports.bind_port(
                    self.spec.dist_addr or address, self.spec.port_seed(message["generation"]), self.spec.port_range
                )
                self.store = Greeter(listener, message["token"])
                opened["port"] = self.store.port
            if message["data"]:
                self.data = Greeter(ports.bind_any_port(address), message["token"])
                opened["data_port"] = self.data.port
        except UserError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"cannot listen at {address}: {error.strerror}"}
        return opened

    async def _resolve(self, message: Message) -> Message:
        """What the name in `launch.master_addr` means here."""
        if not message.get("name"):
            return {}
        try:
            found = await asyncio.wait_for(_in_thread(message["name"]), RESOLVE_TIMEOUT_S)
        except TimeoutError:
            return {"resolve_error": f"no answer within {RESOLVE_TIMEOUT_S:g} s"}
        return {"resolved": found.answers, "resolve_error": found.error}

    def _own(self, master_addr: str) -> network.InterfaceAddress:
        source = master_addr if self.facts.index == 0 else network.source_address_towards(master_addr, 9)
        return network.advertised(source or "", self.env)

    def hand_on(self) -> socket.socket | None:
        """The listening socket of the ranks' store, which node 0 has held from before anybody heard of it."""
        if self.store is None:
            return None
        self.handed, self.store = self.store.hand_on(), None
        return self.handed

    def close(self) -> None:
        """Close the ports that were not handed on."""
        for greeter in (self.store, self.data):
            if greeter is not None:
                greeter.close()
        self.store = self.data = None

    def abandon(self) -> None:
        """The ranks do not start: close what was handed on to them, too."""
        if self.handed is not None:
            self.handed.close()
        self.handed = None


def tell_names(spec: Spec, facts: NodeFacts, tell: Callable[[Message], None]) -> None:
    """Tell how names resolve here once it is known: no start waits for a slow resolver."""
    if spec.simulated or spec.num_nodes == 1:
        return
    loop, host = asyncio.get_running_loop(), socket.gethostname()

    def done(found: list[names.Lookup]) -> None:
        message = {"type": "names", "host": host, "lookups": [dataclasses.asdict(one) for one in found]}
        loop.call_soon_threadsafe(tell, message)

    asked = list(dict.fromkeys([host, spec.hosts[0]]))
    names.in_background(lambda: names.look_up(asked, facts.addresses[:1]), done)


async def _in_thread(name: str) -> names.Lookup:
    """A lookup in a thread that neither the event loop nor the process waits for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[names.Lookup] = loop.create_future()

    def done(found: names.Lookup) -> None:
        if not future.done():
            future.set_result(found)

    names.in_background(lambda: names.forward(name), lambda found: loop.call_soon_threadsafe(done, found))
    return await future
