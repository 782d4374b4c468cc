"""The coordinator of the nodes: lets them in, hears their facts, and finds an address that all of them reach.

Runs in `launch` on the first node; its port is bound before any node hears of it. Knows nothing of Slurm. Everything
that any node says lands in one queue (`inbox`), in the order in which it came; what follows from it once the ranks run
is `conduct`'s business.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import Callable, Sequence

from trainpkg.launch import facts, names, network, ports, wire
from trainpkg.launch.facts import NodeFacts, RollCallError
from trainpkg.launch.head.meeting.member import Incoming, Member
from trainpkg.launch.head.meeting.missing import AskStates, Waiting
from trainpkg.launch.head.meeting.proof import Proof, Proven
from trainpkg.launch.head.meeting.reception import TURN_AWAY_S, Reception, hosts_of
from trainpkg.launch.head.steps.command import OnTheWay
from trainpkg.launch.plan import LaunchPlan, make_plan
from trainpkg.launch.spec import Spec
from trainpkg.launch.start.torchrun import order_of_ranks, simulated_address
from trainpkg.launch.wire import BEAT_S, Message

FACTS_TIMEOUT_S = 30.0
PROOF_TIMEOUT_S = 20.0  # for all nodes to try all addresses of node 0
PARTING_S = 1.0  # typed nodes, which nobody but people started, have longer
MAX_STRANGERS_TOLD = 5
MAX_NAMES_TOLD = 4


class Coordinator:
    """Admits nodes and talks with them. `say` prints a line for people."""

    def __init__(
        self, spec: Spec, secret: str, say: Callable[[str], None], ask_states: AskStates | None = None
    ) -> None:
        self.spec, self.secret, self.say = spec, secret, say
        self.waiting = Waiting(spec, say, ask_states)
        self.members: dict[int, Member] = {}
        self.inbox: asyncio.Queue[Incoming] = asyncio.Queue()
        self.num_strangers = 0
        self.listener: socket.socket | None = None
        self.meeting_point = ""  # the address at which ranks met last
        self.advertised: list[tuple[str, str]] = []  # per node, the address and interface that its ranks tell
        self._server: asyncio.Server | None = None
        self._beating: asyncio.Task[None] | None = None
        self.stop_asked = ""  # why a node was asked to stop before the ranks ran
        self._refused = ""  # a node of ours that must not take part ends the roll call
        self.reception: Reception | None = None  # of typed nodes
        self.interrupted: Callable[[str], None] = say  # called with who was told to end everything
        # members, and who is about to be one; each with the task that hears it
        self._admitted: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._parting_s = 0.0  # for nodes to hear the last words and leave
        self._num_names_told = 0

    async def listen(self, listener: socket.socket | None = None) -> str:
        """Answer from now on, at `listener` or a port of its own; returns what nodes are given as `--head`."""
        spec, loopback = self.spec, self.spec.where == "local"
        addresses = ["127.0.0.1"] if loopback else network.reachable_addresses() or ["127.0.0.1"]
        if listener is not None:
            addresses = [listener.getsockname()[0]]
        # one port alone is for the ranks: two listeners cannot share it
        given = spec.port_range if spec.ports and spec.ports[0] < spec.ports[1] else None
        here = "127.0.0.1" if loopback else network.listen_address(addresses)
        self.listener = listener or ports.bind_port(here, f"head/{spec.port_seed(0)}", given)
        for warning in self._warnings():
            self.say(f"warning: {warning}")
        self._beating = asyncio.get_running_loop().create_task(self._beat())
        self._server = await asyncio.start_server(
            self._serve, sock=self.listener, limit=wire.MAX_LINE, backlog=ports.BACKLOG
        )
        return f"{','.join(addresses)}:{self.listener.getsockname()[1]}"

    def _warnings(self) -> list[str]:
        """On settings that are heeded with a sigh, or not at all."""
        spec, found = self.spec, ports.warnings(self.spec.port_range)
        if spec.master_addr and (spec.simulated or spec.dist_addr):
            why = "all nodes are on this machine" if spec.simulated else "--dist-url says where node 0 is"
            found.append(f"launch.master_addr = {spec.master_addr} is not used: {why}")
        return found

    async def close(self) -> None:
        """Drop all connections; nodes that are still there end their ranks."""
        if self._beating is not None:
            self._beating.cancel()
        if self._server is not None:
            self._server.close()
        # who closes while the other side still writes resets the connection, and the last words with it
        if heard := [task for task in self._admitted.values() if task is not None]:
            await asyncio.wait(heard, timeout=self._parting_s)
        for writer in list(self._admitted):
            writer.close()

    def goodbye(self, status: int, sentence: str) -> None:
        """Let all nodes end, with this status and these last words."""
        self._parting_s = PARTING_S if self.reception is None else TURN_AWAY_S
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
            self._admitted[writer] = asyncio.current_task()
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
                if message.get("type") == "names":
                    self._hear_names(member, message)
                else:
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
            self._admitted.pop(writer, None)
            writer.close()

    def _refuse_stranger(self, peer: str, why: str) -> None:
        self.num_strangers += 1
        if self.num_strangers <= MAX_STRANGERS_TOLD:
            self.say(f"refused a stranger's connection from {peer}: {why}")
        elif self.num_strangers == MAX_STRANGERS_TOLD + 1:
            self.say("refused more strangers' connections; the further ones are not told")

    def _hear_names(self, member: Member, message: Message) -> None:
        """What a node found out about names comes when it comes; nothing waits for it."""
        lookups = [names.Lookup.from_message(one) for one in message["lookups"]]
        first = (self.spec.hosts[0], self.members[0].facts.addresses) if 0 in self.members else ("", [])
        for text in names.complaints(member.name, str(message["host"]), member.facts.addresses, lookups, first):
            self._num_names_told += 1
            if self._num_names_told <= MAX_NAMES_TOLD:
                self.say(f"warning: {text}")
            elif self._num_names_told == MAX_NAMES_TOLD + 1:
                self.say("warning: more such findings about names, on this and other nodes, are not told")

    async def meet(self, ended: Callable[[], str], way: Callable[[], OnTheWay] = OnTheWay) -> list[NodeFacts]:
        """The roll call: the facts of all nodes, in node order.

        `ended` says why no more answers will come (the starting program ended), or nothing; `way` what nodes still do
        before they can answer. Raises RollCallError naming the nodes that are missing at the deadline, or that
        contradict each other.
        """
        on_the_way, next_look = OnTheWay(), time.monotonic() + BEAT_S
        while len(self.members) < self.spec.num_nodes or self.waiting.left:
            try:
                self._enter(await asyncio.wait_for(self.inbox.get(), 0.1))
                why = ""
            except TimeoutError:
                why = ended()
                if why or time.monotonic() >= next_look:
                    next_look = time.monotonic() + BEAT_S
                    on_the_way = way()
            if self._refused:
                raise RollCallError(self._refused)
            if self.reception is not None:
                self.reception.wait(self.members, time.monotonic(), self.waiting.deadline_s, why)
            await self.waiting.check(self.members, why, on_the_way)
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
                self.waiting.gone(member.name)
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
        if self.reception is None:  # else people type their commands one after the other
            self.waiting.answered()
        if found := facts.contradictions(self.spec, [member.facts]):
            raise RollCallError("; ".join(found))

    async def prove_plan(self, nodes: list[NodeFacts], generation: int) -> tuple[LaunchPlan, str]:
        """A plan whose master address every node has reached, at a port that node 0 holds; and how it was proven.

        That nodes reach each other is proven once; a restart takes another port of the same machines.
        Raises RollCallError naming the node, the addresses tried and why not.
        """
        spec, local = self.spec, self.spec.simulated
        pairs = generation == 0 and not local and len(nodes) > 1
        wanted = None if local or spec.dist_addr else spec.master_addr
        proven = await Proof(self, nodes, generation, wanted, pairs, self.meeting_point).run()
        self.meeting_point = proven.address
        self.advertised = proven.own or self.advertised
        for warning in proven.warnings if generation == 0 else ():
            self.say(f"warning: {warning}")
        plan = make_plan(
            spec.hosts,
            [node.num_ranks for node in nodes],
            rank_order=self._rank_order(proven) if spec.backend == "torchrun" else None,
            master_addr=proven.address,
            master_port=proven.port,
            master_proven=True,
            one_machine=local or len(nodes) == 1,
            job_id=spec.slurm_job_id,
            attempt=spec.attempt,
            generation=generation,
        )
        return plan, proven.describe(nodes)

    def _rank_order(self, proven: Proven) -> list[int]:
        """The order of nodes that torchrun's c10d rendezvous makes, from the addresses that their agents tell it."""
        count = self.spec.num_nodes
        if self.spec.simulated:
            return order_of_ranks([simulated_address(self.spec, index, proven.address) for index in range(count)])
        return order_of_ranks([address for address, _ in self.advertised] or [proven.address])

    def tell(self, index: int, message: Message) -> None:
        self.members[index].tell(message)

    async def collect(self, kind: str, generation: int, indices: Sequence[int]) -> dict[int, Message]:
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
