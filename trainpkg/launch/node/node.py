"""The launcher of one node: starts its ranks when the coordinator says so, watches them, and leaves none behind.

It begins to import torch (in the fork server) before it calls the coordinator, so that the two take the time of one.
When the coordinator's connection ends, so do the ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TextIO

from trainpkg.errors import UserError
from trainpkg.launch import processes, wire
from trainpkg.launch.node import environment, prove
from trainpkg.launch.node.call import call_head
from trainpkg.launch.node.orders import make_orders, plan_of
from trainpkg.launch.node.prove import Prover
from trainpkg.launch.node.ranks import Ranks
from trainpkg.launch.reach import Streams
from trainpkg.launch.spec import Spec
from trainpkg.launch.start.choose import make_starter
from trainpkg.launch.start.execute import ExecStarter
from trainpkg.launch.start.fork import ForkStarter
from trainpkg.launch.start.guards import Guards
from trainpkg.launch.start.starter import Calls, Starter, StartFailed
from trainpkg.launch.wire import BEAT_S, GAP_S, Message


class Node:
    """One node's side of the roll call and of the generations that follow."""

    def __init__(
        self, spec: Spec, spec_path: Path, index: int, secret: str, head: str, streams: Streams | None = None
    ) -> None:
        self.spec, self.spec_path, self.index, self.secret, self.head = spec, spec_path, index, secret, head
        self.streams = streams  # to the coordinator, where it has been called already
        self.show: Callable[[str], None] = self.say  # what the head says to people at all nodes
        self.last_words = ""
        self.log: TextIO = self._open_log(0)
        self.facts, self.base_env = environment.of_node(spec, index, os.environ)
        self.writer: asyncio.StreamWriter | None = None
        self.prover = Prover(spec, self.facts, self.base_env)
        self.stop_why = ""
        self.heard = time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()
        self.going: asyncio.Task[None] | None = None

    def _open_log(self, generation: int) -> TextIO:
        folder = self.spec.generation_dir(generation)
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"node-{self.index}.log").open("a", buffering=1)

    def say(self, text: str) -> None:
        """A line in this node's log."""
        self.log.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def tell(self, message: Message) -> None:
        """Queue a message to the coordinator."""
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(wire.encode(message))

    async def run(self) -> int:
        """From the first import to the coordinator's `bye`, or the loss of it. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop_requested, signum)
        if self.spec.where == "typed" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else under nohup
            loop.add_signal_handler(signal.SIGHUP, self._stop_requested, signal.SIGHUP)
        else:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.say("\n".join(environment.lines(self.facts)))
        self.ranks = Ranks(self.tell, self.say, self.spec, self.index, self._hear_guard)
        ranks = self.ranks
        self.calls = Calls(ranks.started, ranks.ended, self._starter_gone, self._rank_refused, ranks.program_ended)
        self.starter: Starter = make_starter(self.spec, self.base_env, self.calls)
        grace_s = 0.0
        try:
            await self.ranks.listen()
            reader, self.writer = self.streams or await call_head(self.head, self.secret, self.spec, self.say)
            self.tell({"type": "facts", **dataclasses.asdict(self.facts)})
            if self.stop_why:
                self.tell({"type": "stop", "why": self.stop_why})
            self._spawn(self._beat())
            prove.tell_names(self.spec, self.facts, self.tell)
            status = await self._obey_all(reader)
            grace_s = self.spec.timeouts.stop_grace_s if status is not None else 0.0
            return 1 if status is None else status
        except UserError as error:
            self.say(f"error: {error}")
            raise
        finally:
            await self._clean_up(grace_s)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _hear_guard(self, reader: StreamReader, writer: StreamWriter, hello: Mapping[str, Any]) -> None:
        if isinstance(self.starter, Guards):
            await self.starter.hear(reader, writer, hello)

    def _rank_refused(self, why: str) -> None:
        """Some launcher started a rank that the plan does not have here."""
        self.say(f"refused: {why}")
        self.tell({"type": "start_failed", "generation": self.ranks.generation, "message": f"refused a rank: {why}"})

    def _stop_requested(self, signum: int) -> None:
        """Pass the request on: the coordinator tells all nodes, so that all ranks stop at the same step."""
        again, self.stop_why = self.stop_why, signal.Signals(signum).name
        self.say(f"received {self.stop_why}")
        interrupts = self.spec.where == "typed" and signum != signal.SIGTERM  # Ctrl-C, a closed terminal
        self.tell({"type": "interrupt" if interrupts else "stop", "why": self.stop_why})
        if interrupts and again and self.writer is not None:
            self.writer.transport.abort()

    async def _beat(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            if now - last > GAP_S:  # this process itself was stopped; what was sent meanwhile is still unread
                self.heard = now
            last = now
            beat = {"type": "beat", "generation": self.ranks.generation, "steps": self.ranks.steps()}
            self.tell(beat | ({"halted": halted} if (halted := self.ranks.halted()) else {}))
            if now - self.heard > self.spec.timeouts.heartbeat_s and self.writer is not None:
                self.say(f"the coordinator has been silent for {now - self.heard:.0f} s")
                self.writer.transport.abort()

    async def _obey_all(self, reader: asyncio.StreamReader) -> int | None:
        """Do what the coordinator says until its `bye`; returns the status it gives, None when it is gone."""
        while (message := await wire.receive(reader)) is not None:
            self.heard = time.monotonic()
            kind = message["type"]
            if kind == "bye":
                self.last_words = str(message.get("sentence", ""))
                return int(message["status"])
            if kind in prove.KINDS:
                self._spawn(self._prove(message))
            elif kind == "said":
                self.show(str(message["text"]))
            elif kind == "examine":
                self._spawn(self._examine(message))
            elif kind == "prepare":
                self._spawn(self._prepare(message))
            elif kind == "go":
                self.going = self._spawn(self._go(message))
            elif kind == "save":
                self.ranks.signal_all(signal.SIGUSR2)
            elif kind == "stacks":
                self._spawn(self._tell_stacks(message))
            elif kind == "stop":
                self._spawn(self._stop(message))
        self.say("the coordinator is gone; ending all ranks")
        return None

    async def _tell_stacks(self, message: Message) -> None:
        self.tell({"type": "stacks", "generation": message["generation"], "stacks": await self.ranks.stacks()})

    async def _prove(self, message: Message) -> None:
        self.tell(await self.prover.answer(message))

    async def _examine(self, message: Message) -> None:
        from trainpkg.launch.doctor import nodes  # asked for in a smoke test alone

        report = await nodes.report(self.spec, self.facts, message, self.base_env)
        self.tell({"type": "examined", **report})

    async def _go(self, message: Message) -> None:
        """Start this node's ranks of a new generation. What stands in the way is told: a silent node hangs the job."""
        try:
            await self._start_ranks(message)
        except (StartFailed, UserError, OSError, subprocess.SubprocessError) as error:
            if isinstance(error, StartFailed):
                self.ranks.abandon()
            else:
                self.ranks.forget_unborn()  # those that live end as always
            details = error.details if isinstance(error, StartFailed) else ""
            failed = {"message": f"could not start its ranks: {error}", "details": details}
            self.tell({"type": "start_failed", "generation": message["generation"], **failed})
            self.say(f"start failed: {error}\n{details}")
            self.prover.abandon()
        self.prover.close()

    async def _start_ranks(self, message: Message) -> None:
        generation = message["generation"]
        self.spec = dataclasses.replace(self.spec, hosts=message.get("hosts", self.spec.hosts))
        if generation > 0:
            old, self.log = self.log, self._open_log(generation)
            old.close()
        plan = plan_of(self.spec, message)
        listen = self.prover.hand_on()
        if listen is not None and not self.spec.passes_port:
            listen.close()  # as late as can be: somebody else binds it now
        # all of them before the first start: none runs when one cannot be made
        held = listen if self.spec.passes_port else None
        orders = make_orders(self.spec, self.spec_path, plan, self.index, message["device"], self.base_env, held)
        self.ranks.begin(orders)
        await self._starter_ready()  # again: it may have been lost meanwhile
        self.starter.start(orders)

    async def _prepare(self, message: Message) -> None:
        """Tell when ranks can be started, or why never. `own_imports`: each rank has yet to import everything."""
        answer: Message = {"type": "ready", "generation": message["generation"]}
        try:
            self.say(await self._starter_ready())
        except StartFailed as error:
            self.say(f"start failed: {error}\n{error.details}")
            answer |= {"error": f"could not start its ranks: {error}", "details": error.details}
        self.tell(answer | {"own_imports": self.starter.own_imports})

    async def _starter_ready(self) -> str:
        try:
            return await self.starter.ready()
        except StartFailed as error:
            # an import that fails here fails in every other way of starting too
            if error.details or not isinstance(self.starter, ForkStarter):
                raise
            self.say(f"warning: {error}: ranks cannot be forked safely and start as programs of their own")
            self.starter.close()
            self.starter = ExecStarter(self.base_env, self.calls)
            return await self.starter.ready()

    async def _stop(self, message: Message) -> None:
        """End what is left of the generation, and everything that its ranks left behind."""
        if self.going is not None and not self.going.done():
            self.going.cancel()
            self.ranks.forget_unborn()
        elif isinstance(self.starter, Guards):
            self.ranks.forget_unborn(self.starter.halt())
        spared = frozenset(message.get("spare", ()))
        await self.ranks.stop(float(message["grace_s"]), spared, self.spec.timeouts.save_grace_s)
        self.starter.stop()
        left = processes.kill_descendants(self.starter.helpers)
        self.tell({"type": "stopped", "generation": message["generation"], "left": left})

    def _starter_gone(self, why: str, signum: int | None) -> None:
        self.say(why)
        self.ranks.abandon()
        failed = {"message": f"lost all its ranks: {why}", "signal": signum}
        self.tell({"type": "start_failed", "generation": self.ranks.generation, **failed})
        self.starter = make_starter(self.spec, self.base_env, self.calls)

    async def _clean_up(self, grace_s: float) -> None:
        for task in self.tasks.copy():
            task.cancel()
        await self.ranks.stop(grace_s)
        self.starter.close()
        left = processes.kill_descendants()
        self.say(f"ended; processes that did not die: {left}" if left else "ended; nothing left behind")
        self.ranks.close()
        if self.writer is not None:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self.writer.drain(), 1.0)
            self.writer.close()
