"""The coordinator of the nodes: lets them in, hears their facts, and finds an address that all of them reach.

Runs in `launch` on the first node; its port is bound before any node hears of it. Knows nothing of Slurm. Everything
that any node says lands in one queue (`inbox`), in the order in which it came; what follows from it once the ranks run
is `conduct`'s business.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import secrets
import socket
import time
from collections.abc import Callable

from trainpkg.launch import facts, network, wire
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.head.command import OnTheWay
from trainpkg.launch.head.member import Incoming, Member
from trainpkg.launch.head.reception import Reception, hosts_of
from trainpkg.launch.plan import LaunchPlan, make_plan
from trainpkg.launch.spec import Spec
from trainpkg.launch.wire import BEAT_S, Message

FACTS_TIMEOUT_S = 30.0
PROOF_TIMEOUT_S = 20.0  # for all nodes to try all addresses of node 0
MAX_STRANGERS_TOLD = 5


class RollCallError(Exception):
    """The nodes cannot start together; the text names the nodes and what to do."""


class Coordinator:
    """Admits nodes and talks with them. `say` prints a line for people."""

    def __init__(self, spec: Spec, secret: str, say: Callable[[str], None]) -> None:
        self.spec, self.secret, self.say = spec, secret, say
        self.members: dict[int, Member] = {}
        self.inbox: asyncio.Queue[Incoming] = asyncio.Queue()
        self.num_strangers = 0
        self.listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._beating: asyncio.Task[None] | None = None
        self.stop_asked = ""  # why a node was asked to stop before the ranks ran
        self._refused = ""  # a node of ours that must not take part ends the roll call
        self.reception: Reception | None = None  # of typed nodes
        self.interrupted: Callable[[str], None] = say  # called with who was told to end everything
        self._admitted: set[asyncio.StreamWriter] = set()  # members, and who is about to be one

    async def listen(self, listener: socket.socket | None = None) -> str:
        """Answer from now on, at `listener` or a port of its own; returns what nodes are given as `--head`."""
        loopback = self.spec.where == "local"
        addresses = ["127.0.0.1"] if loopback else network.reachable_addresses() or ["127.0.0.1"]
        seed = f"head/{network.port_seed(self.spec.slurm_job_id, None, self.spec.attempt)}/{self.spec.run}"
        if listener is not None:
            addresses = [listener.getsockname()[0]]
        here = "127.0.0.1" if loopback else network.listen_address(addresses)
        self.listener = listener or network.bind_port(here, seed)
        self._beating = asyncio.get_running_loop().create_task(self._beat())
        self._server = await asyncio.start_server(
            self._serve, sock=self.listener, limit=wire.MAX_LINE, backlog=network.BACKLOG
        )
        return f"{','.join(addresses)}:{self.listener.getsockname()[1]}"

    async def close(self) -> None:
        """Drop all connections; nodes that are still there end their ranks."""
        if self._beating is not None:
            self._beating.cancel()
        if self._server is not None:
            self._server.close()
        drains = [asyncio.ensure_future(writer.drain()) for writer in self._admitted]
        if drains:
            await asyncio.wait(drains, timeout=1.0)
        for writer in self._admitted.copy():
            writer.close()

    def goodbye(self, status: int, sentence: str) -> None:
        """Let all nodes end, with this status and these last words."""
        for writer in self._admitted:
            if not writer.is_closing():
                writer.write(wire.encode({"type": "bye", "status": status, "sentence": sentence}))

    async def _beat(self) -> None:
        """Tell the nodes that their coordinator lives, from the roll call to the end."""
        while True:
            await asyncio.sleep(BEAT_S)
            self.tell_all({"type": "beat"})

    def tell_all(self, message: Message) -> None:
        for member in self.members.values():
            member.tell(message)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from the handshake to its end."""
        peer = str((writer.get_extra_info("peername") or ["?"])[0]).removeprefix("::ffff:")  # IPv4 at a dual socket
        member = None
        try:
            await wire.admit(reader, writer, self.secret, self.spec.handshake)
            self._admitted.add(writer)
            first = await asyncio.wait_for(wire.receive(reader), FACTS_TIMEOUT_S)
            if self.reception is not None and first is not None and first.get("type") == "typed":
                first = await self.reception.receive(first, reader, writer)
            if first is None:
                return
            member = Member(NodeFacts.from_message(first), writer, peer)
            self.inbox.put_nowait(Incoming(member, first))
            while (message := await wire.receive(reader)) is not None:
                member.heard = time.monotonic()
                if message.get("type") == "interrupt":
                    self.interrupted(f"{message.get('why')} on {member.name}")
                self.inbox.put_nowait(Incoming(member, message))
        except wire.Stranger as error:
            self._refuse_stranger(peer, str(error))
        except (wire.Refused, ValueError, TimeoutError) as error:
            self._refused = f"a node at {peer} cannot take part: {error}"
        except asyncio.CancelledError:
            pass  # the loop ends; asyncio's own callback would print a traceback for a handler that was cancelled
        finally:
            if member is not None:
                self.inbox.put_nowait(Incoming(member, None))
            self._admitted.discard(writer)
            writer.close()

    def _refuse_stranger(self, peer: str, why: str) -> None:
        self.num_strangers += 1
        if self.num_strangers <= MAX_STRANGERS_TOLD:
            self.say(f"refused a stranger's connection from {peer}: {why}")
        elif self.num_strangers == MAX_STRANGERS_TOLD + 1:
            self.say("refused more strangers' connections; the further ones are not told")

    async def meet(self, ended: Callable[[], str], way: Callable[[], OnTheWay] = OnTheWay) -> list[NodeFacts]:
        """The roll call: the facts of all nodes, in node order.

        `ended` says why no more answers will come (the starting program ended), or nothing; `way` what nodes still do
        before they can answer. Raises RollCallError naming the nodes that are missing at the deadline, or that
        contradict each other.
        """
        begin = time.monotonic()
        times = self.spec.timeouts
        deadline = begin + times.start_s
        on_the_way, next_look = OnTheWay(), begin + BEAT_S
        while len(self.members) < self.spec.num_nodes:
            try:
                incoming = await asyncio.wait_for(self.inbox.get(), 0.1)
            except TimeoutError:
                over = ended()
                if over or time.monotonic() >= next_look:
                    next_look = time.monotonic() + BEAT_S
                    on_the_way = way()
                if on_the_way.busy:  # they are there, and busy: the roll call's time is not for that
                    deadline = max(deadline, min(time.monotonic() + times.rollcall_s, begin + times.start_s))
                self._check_on(deadline, over, on_the_way)
                continue
            if not self.members and self.reception is None:  # people type their commands one after the other
                deadline = time.monotonic() + times.rollcall_s
            self._enter(incoming)
            self._check_on(deadline, "", on_the_way)
        nodes = [self.members[index].facts for index in sorted(self.members)]
        if found := facts.contradictions(self.spec, nodes):
            raise RollCallError("the nodes cannot train together: " + "; ".join(found))
        for warning in facts.warnings(nodes, time.time()):
            self.say(f"warning: {warning}")
        if self.reception is not None:
            self.reception.complete = True
            self.spec = dataclasses.replace(self.spec, hosts=hosts_of(self.spec, nodes))
        return nodes

    def _enter(self, incoming: Incoming) -> None:
        member, message = incoming.member, incoming.message
        if message is None:
            if self.members.get(member.facts.index) is member:
                raise RollCallError(f"{member.name} answered the roll call and then its connection ended")
            return
        if message.get("type") == "stop":
            self.stop_asked = str(message.get("why"))
        if message.get("type") != "facts":
            return
        index, other = member.facts.index, self.members.get(member.facts.index)
        if other is not None:
            raise RollCallError(
                f"two nodes say that they are node {index}: {other.facts.host} (process {other.facts.pid}, from "
                f"{other.peer}) and {member.facts.host} (process {member.facts.pid}, from {member.peer}). Each node "
                "needs an index of its own, one launcher per node"
            )
        self.members[index] = member
        if found := facts.contradictions(self.spec, [member.facts]):
            raise RollCallError("; ".join(found))

    def _check_on(self, deadline: float, ended: str, on_the_way: OnTheWay) -> None:
        if self._refused:
            raise RollCallError(self._refused)
        if on_the_way.failed:
            raise RollCallError("; ".join(on_the_way.failed[: facts.MAX_NAMED]))
        if self.reception is not None:
            self.reception.remind(self.members, time.monotonic())
        if time.monotonic() < deadline and not ended:
            return
        expected = dict(enumerate(self.spec.hosts))
        missing = [
            on_the_way.busy.get(index, f"node {index} ({host})")
            for index, host in expected.items()
            if index not in self.members
        ]
        answered = facts.name_nodes([member.facts for member in self.members.values()]) or "none"
        if self.reception is not None and not ended:
            raise RollCallError(self.reception.too_late(self.members, answered))
        more = f" and {len(missing) - facts.MAX_NAMED} more" if len(missing) > facts.MAX_NAMED else ""
        names = ", ".join(missing[: facts.MAX_NAMED]) + more
        times = self.spec.timeouts
        if ended:
            within = f"before {ended}"
        elif self.members:
            within = f"within {times.rollcall_s:g} s of the first answer (launch.rollcall_timeout_s)"
        else:
            within = f"within {times.start_s:g} s (launch.start_timeout_s)"
        raise RollCallError(
            f"{names} did not answer the roll call {within}; answered: {answered}. Look at node-K.log in "
            f"{self.spec.generation_dir(0)}: where a node's is absent, its launcher never ran (is the node up, the run "
            "directory shared?); where it says that it cannot connect, a firewall or a route stands between"
        )

    async def prove_plan(self, nodes: list[NodeFacts], generation: int) -> tuple[LaunchPlan, str]:
        """A plan whose master address every node has reached, at a port that node 0 holds; and how it was proven.

        Node 0 greets each probe with a token, so that an address which leads elsewhere (a bridge that every host has,
        another job's port) does not count. Raises RollCallError naming the node, the addresses tried and why not.
        """
        token = secrets.token_hex(8)
        candidates = nodes[0].addresses or ["127.0.0.1"]
        self.members[0].tell({"type": "open", "generation": generation, "token": token, "addresses": candidates})
        opened = (await self.collect("opened", generation, [0]))[0]
        if opened.get("error"):
            raise RollCallError(f"{self.members[0].name} cannot open a port for the ranks: {opened['error']}")
        port = int(opened["port"])
        others = [index for index in self.members if index != 0]
        probe = {"type": "probe", "generation": generation, "token": token, "addresses": candidates, "port": port}
        for index in others:
            self.members[index].tell(probe)
        results = await self.collect("probed", generation, others) if others else {}
        reached = [a for a in candidates if all(results[i]["errors"].get(a) is None for i in others)]
        if not reached:
            raise RollCallError(self._unreached(results, candidates, port))
        plan = make_plan(
            self.spec.hosts,
            [node.num_ranks for node in nodes],
            master_addr=reached[0],
            master_port=port,
            master_proven=True,
            one_machine=self.spec.simulated or len(nodes) == 1,
            job_id=self.spec.slurm_job_id,
            attempt=self.spec.attempt,
            generation=generation,
        )
        return plan, f"{reached[0]} port {port}, reached by all {len(nodes)} nodes" if others else ""

    def _unreached(self, results: dict[int, Message], candidates: list[str], port: int) -> str:
        for index, result in sorted(results.items()):
            errors = result["errors"]
            if all(errors.get(address) is not None for address in candidates):
                told = "; ".join(f"{address}: {errors[address]}" for address in candidates)
                return (
                    f"{self.members[index].name} reaches no address of {self.members[0].name} at port {port} ({told}). "
                    f"By hand: `nc -l {port}` there, `nc -v {candidates[0]} {port}` here"
                )
        return f"no address of {self.members[0].name} is reached by all nodes; tried {', '.join(candidates)}"

    async def collect(self, kind: str, generation: int, indices: list[int]) -> dict[int, Message]:
        """One message of that kind from each of these nodes. Other messages of nodes meanwhile are beats or old."""
        found: dict[int, Message] = {}
        end = time.monotonic() + PROOF_TIMEOUT_S
        while len(found) < len(indices):
            try:
                incoming = await asyncio.wait_for(self.inbox.get(), max(0.0, end - time.monotonic()))
            except TimeoutError as error:
                silent = facts.name_nodes([self.members[i].facts for i in indices if i not in found])
                raise RollCallError(f"{silent}: no answer within {PROOF_TIMEOUT_S:g} s ({kind})") from error
            message = incoming.message
            if message is None:
                if self.members.get(incoming.member.facts.index) is incoming.member:
                    raise RollCallError(f"{incoming.member.name}: its connection ended while the plan was made")
            elif message.get("type") == "stop":
                self.stop_asked = str(message.get("why"))
            elif message.get("type") == kind and message.get("generation") == generation:
                found[incoming.member.facts.index] = message
        return found


def run_lengths(counts: list[int]) -> str:
    """`[8, 8, 4]` -> `8(x2),4`, Slurm's own shorthand, which `grammar.expand_counts` reads."""
    groups = ((count, len(list(run))) for count, run in itertools.groupby(counts))
    return ",".join(f"{count}(x{length})" if length > 1 else str(count) for count, length in groups)
