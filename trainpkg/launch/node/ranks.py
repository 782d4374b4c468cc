"""The ranks of one node in one generation: their processes, what they report, how they are ended.

Ranks report JSON lines on a unix socket that hears processes of this user alone. What a rank said before it died is
read to the end before its death is told, so that an exception is never mistaken for a silent exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch import memory, processes, stacks, unix
from trainpkg.launch.node import evidence
from trainpkg.launch.node.evidence import MAX_TEXT
from trainpkg.launch.spec import PROGRAMS, Spec
from trainpkg.launch.start.guards import Hear
from trainpkg.launch.start.starter import Ended, Orders, ProgramEnded
from trainpkg.launch.wire import Message, shorten

LAST_WORDS_S = 0.3  # for the report's end after a rank's; a forked worker of it may hold the socket open


@dataclass
class LocalRank:
    """One rank on this node. `wait_status` None: it lives."""

    rank: int
    log: Path
    pid: int | None = None
    reported: int | None = None  # the step that it last spoke of
    counter: mmap.mmap | None = None  # where it counts every step
    phase: str = ""
    halted: float | None = None  # since when its process is seen stopped, on the clock of this node
    step_told: int | None = None
    done: str | None = None
    raised: bool = False
    ended: Ended | None = None
    connected: bool = False
    cgroup: memory.Place | None = None
    memory_before: memory.Reading | None = None
    silent: asyncio.Event = field(default_factory=asyncio.Event)  # its report has come to its end

    @property
    def step(self) -> int | None:
        """Steps done, exact where the rank shares its counter."""
        counted = struct.unpack("q", self.counter[:8])[0] if self.counter is not None else 0
        return counted or self.reported


class Ranks:
    """Ranks of the generation that runs. `tell` sends a message to the coordinator, `say` writes into the node's log,
    `hear_guard` talks with a guard."""

    def __init__(
        self, tell: Callable[[Message], None], say: Callable[[str], None], spec: Spec, index: int, hear_guard: Hear
    ) -> None:
        self.tell, self.say, self.spec, self.hear_guard = tell, say, spec, hear_guard
        self.address = spec.report_address(index)
        self.port = 0  # of the generation, where rank 0 or its launcher binds it itself
        self.generation = -1
        self.ranks: dict[int, LocalRank] = {}
        self.stopping = False
        self.empty = asyncio.Event()
        self.empty.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Hear ranks from now on. Raises UserError where another launcher of this attempt does already."""
        path = unix.address_of(self.address)
        try:
            self._server = await asyncio.start_unix_server(self._hear, path, limit=256 * 1024, backlog=1024)
        except OSError as error:
            raise UserError(
                f"this host has a launcher of this attempt already ({error.strerror}): `node` was started twice here. "
                "It is started once per node, not once per task; look at SLURM_NTASKS_PER_NODE and --ntasks"
            ) from error

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def begin(self, orders: Orders) -> None:
        """A new generation; none of the last one is left. A program that is not ours is one unit, named by the node."""
        assert all(rank.ended for rank in self.ranks.values())
        self.generation, self.stopping = orders.plan.generation, False
        self.port = 0 if self.spec.passes_port else orders.plan.master_port
        logs = {order.rank: Path(order.log) for order in orders.ranks}
        if self.spec.foreign:
            logs = {orders.index: orders.folder / f"program-{orders.index}.log"}
        self.ranks = {number: LocalRank(number, log) for number, log in logs.items()}
        self.empty.clear()

    def started(self, rank: int, pid: int) -> None:
        it = self.ranks[rank]
        it.pid = pid
        it.cgroup = memory.find(pid)
        it.memory_before = memory.read(it.cgroup)
        self.say(f"{PROGRAMS[self.spec.backend] if self.spec.foreign else f'rank {rank}'} is process {pid}")
        self.tell({"type": "event", "event": "started", "rank": rank, "generation": self.generation})
        if self.stopping:  # the order to end came while it was being born
            processes.kill_group(pid, signal.SIGKILL)

    def steps(self) -> dict[str, int]:
        """Step counters that moved since the last call."""
        moved = {str(r.rank): r.step for r in self.ranks.values() if r.step is not None and r.step != r.step_told}
        for rank in self.ranks.values():
            rank.step_told = rank.step
        return moved

    def halted(self) -> dict[str, float]:
        """Seconds for which processes of ranks have been stopped, as SIGSTOP does; those that run are not in it."""
        now, found = time.monotonic(), {}
        for rank in self.ranks.values():
            if rank.pid is None or rank.ended is not None or stacks.state_of(rank.pid) != stacks.STOPPED:
                rank.halted = None
                continue
            rank.halted = now if rank.halted is None else rank.halted
            found[str(rank.rank)] = round(now - rank.halted, 1)
        return found

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = None
        try:
            if not unix.is_ours(writer.get_extra_info("socket")):
                return
            while line := await reader.readline():
                message = json.loads(line)
                if message["event"] == "guard":
                    await self.hear_guard(reader, writer, message)
                    return
                rank = self.ranks[int(message["rank"])]
                rank.connected = True
                self._take(rank, message)
        except (ValueError, KeyError, TypeError, OSError):
            pass  # a torn last line of a dying rank, or a process that has no business here
        finally:
            if rank is not None:
                rank.silent.set()
            writer.close()

    def _take(self, rank: LocalRank, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "step":
            first, rank.reported = rank.reported is None, int(message["step"])
            if not first and rank.reported != message.get("total"):
                return  # the heartbeat carries it
        elif event == "hello":
            rank.counter = evidence.counter_of(message)
        elif event == "busy":
            rank.phase = str(message["phase"])
        elif event == "done":
            rank.done = message["verdict"]
        elif event == "exception":
            if rank.raised:
                return
            rank.raised = True
            message["error_type"] = str(message.pop("type", ""))  # on the wire, `type` is the kind of message
            message["message"] = shorten(str(message.get("message", "")), MAX_TEXT)
            message["traceback"] = shorten(str(message.get("traceback", "")), 2 * MAX_TEXT)
        self.tell({**message, "type": "event", "generation": self.generation})

    def ended(self, ended: Ended) -> None:
        """A rank's process has ended; told once its report is read."""
        task = asyncio.get_running_loop().create_task(
            self._tell_end(self.ranks[ended.rank], ended, self.stopping or ended.orphaned)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_end(self, rank: LocalRank, ended: Ended, stopped: bool) -> None:
        now = time.monotonic()
        if rank.connected:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rank.silent.wait(), LAST_WORDS_S)
        else:
            await asyncio.sleep(0.02)  # a connection that is still in the backlog is accepted first
        rank.ended = ended
        if self.spec.silent and not stopped and ended.exit_code is not None:
            rank.done = rank.done or {0: "finished", 75: "again"}.get(ended.exit_code)
        good = rank.done and ended.exit_code in (0, 75)
        bad: Message = {} if good else evidence.of_end(rank.log, self.port, rank.cgroup, rank.memory_before)
        self.tell(
            {
                "type": "ended",
                "generation": self.generation,
                "rank": rank.rank,
                "pid": ended.pid,
                "exit_code": ended.exit_code,
                "signal": ended.signal,
                "step": rank.step,
                "done": rank.done,
                "stopped": stopped,
                "age_s": round(time.monotonic() - now, 4),
            }
            | bad
        )
        if all(other.ended for other in self.ranks.values()):
            self.empty.set()

    async def stacks(self) -> list[Message]:
        """Where each living rank is: [{ranks, frames, state}], equal ones together."""
        living = {rank.rank: rank for rank in self.ranks.values() if rank.pid is not None and rank.ended is None}
        dumps = evidence.Dumps({number: (rank.pid or 0, rank.log) for number, rank in living.items()})
        self.signal_all(stacks.SIGNAL)
        return await dumps.read()

    def program_ended(self, ended: ProgramEnded) -> None:
        """The program that starts this node's ranks has ended; told once its ranks had the time to end, too."""
        task = asyncio.get_running_loop().create_task(self._tell_program_end(ended, self.generation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_program_end(self, ended: ProgramEnded, generation: int) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.empty.wait(), 2 * LAST_WORDS_S)
        if self.stopping or self.generation != generation:
            return
        ranks, trouble = self.ranks.values(), ""
        if any(rank.ended is None or rank.ended.orphaned for rank in ranks):
            trouble = "while its ranks ran" if any(rank.pid for rank in ranks) else "before its ranks were started"
        elif ended.exit_code != 0 and all(rank.done and rank.ended.exit_code == 0 for rank in ranks if rank.ended):
            trouble = "after its ranks were done"
        message = {"type": "program_ended", "generation": generation, "name": ended.name, "pid": ended.pid}
        message |= {"exit_code": ended.exit_code, "signal": ended.signal, "trouble": trouble}
        self.tell(message | (evidence.of_log(ended.log, self.port) if trouble else {}))

    def forget_unborn(self, being_born: Collection[int] = ()) -> None:
        """Ranks that were never started will not end: count them as gone."""
        for rank in self.ranks.values():
            if rank.pid is None and rank.ended is None and rank.rank not in being_born:
                rank.ended = Ended(rank.rank, 0, None, signal.SIGKILL)
        if all(rank.ended for rank in self.ranks.values()):
            self.empty.set()

    def abandon(self) -> None:
        """Their starter is gone and they died with it: nobody will tell of their ends."""
        for rank in self.ranks.values():
            rank.ended = rank.ended or Ended(rank.rank, rank.pid or 0, None, signal.SIGKILL)
        self.empty.set()

    def signal_all(self, signum: int) -> None:
        """Send a signal to every living rank."""
        for rank in self.ranks.values():
            self.signal(rank, signum)

    def signal(self, rank: LocalRank, signum: int) -> None:
        """SIGKILL goes to the whole process group of a rank, others to the rank alone."""
        if rank.pid is None or rank.ended is not None:
            return
        if signum == signal.SIGKILL:
            processes.kill_group(rank.pid, signum)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signum)

    async def stop(self, grace_s: float, spared: Collection[str] = (), spare_s: float = 0.0) -> None:
        """SIGTERM, and after the grace SIGKILL, until every rank's end has been told.

        Ranks in a phase that is `spared` (a checkpoint that can still become whole) have `spare_s` instead.
        """
        self.stopping = True
        if self.empty.is_set():
            return
        began = time.monotonic()
        self.signal_all(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.empty.wait(), grace_s)
        while not self.empty.is_set():
            lenient = time.monotonic() - began < spare_s
            for rank in self.ranks.values():
                if not (lenient and rank.phase in spared):
                    self.signal(rank, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.empty.wait(), 0.05 if lenient and spared else 1.0)
