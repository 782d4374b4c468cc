"""The node's side of guards: ranks that some other launcher starts come and ask what they shall be (see `guard`).

The orders of a generation wait here. A guard whose rank the plan does not have on this node, or that comes a second
time, is refused, and the coordinator hears why.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainpkg.launch import processes
from trainpkg.launch.start.starter import Calls, Ended, Order, Orders

# What a launcher says to its own processes, and what Slurm grants to a task: never replaced by the node's own.
LAUNCHERS_OWN = ("SLURM_", "SRUN_", "PMI", "OMPI_", "PRTE_", "ORTE_", "MPI_", "MV2_", "HYDRA_", "TORCHELASTIC_")
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")

Hear = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Mapping[str, Any]], Awaitable[None]]


@dataclass
class Guards:
    """Starts nothing: its ranks are started by somebody else, as tasks of a step that `launch` started."""

    env: dict[str, str]
    calls: Calls
    own_devices: bool = True  # a task was granted devices of its own; else those of the node are its
    own_imports: bool = True
    helpers: list[int] = field(default_factory=list)
    orders: Orders | None = None
    asked: dict[int, asyncio.StreamWriter] = field(default_factory=dict)  # rank -> its guard
    halted: int = -1  # the generation of which no further guard is answered
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def ready(self) -> str:
        return "ranks are started by another launcher"

    def start(self, orders: Orders) -> None:
        self._hang_up()
        self.orders, self.asked = orders, {}
        asyncio.get_running_loop().create_task(self._notify())

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def stop(self) -> None:
        """Nothing runs beside the ranks."""

    def close(self) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        for writer in self.asked.values():
            writer.close()  # a guard that still is there ends its rank

    @property
    def generation(self) -> int:
        return -1 if self.orders is None else self.orders.plan.generation

    def halt(self) -> Collection[int]:
        """Answer no further guard of this generation; returns the ranks whose guards have been answered."""
        self.halted = self.generation
        return set(self.asked)

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Mapping[str, Any]) -> None:
        """One guard, from its question to its rank's end."""
        generation = int(hello["generation"])
        async with self.changed:  # it may be here before this node has been told to start its ranks
            await self.changed.wait_for(lambda: max(self.generation, self.halted) >= generation)
        assert self.orders is not None
        if refusal := hello.get("refused") or self._refusal(self.orders, hello):
            writer.write(b"-" + json.dumps({"refused": refusal}).encode() + b"\n")
            if generation == self.generation != self.halted:
                self.calls.refused(refusal)
            return
        rank = int(hello["rank"])
        self.asked[rank] = writer
        order = next(order for order in self.orders.ranks if order.rank == rank)
        self._answer(writer, order)
        pid = None
        while line := await reader.readline():
            message = json.loads(line)
            if message["event"] == "started":
                pid = int(message["pid"])
                self.calls.started(rank, pid)
            elif message["event"] == "exited":
                self.calls.ended(
                    Ended(rank, message["pid"], message["exit_code"], message["signal"], message["orphaned"])
                )
                return
        if self.asked.get(rank) is writer:  # the guard was killed, and the rank with it
            if pid is not None:
                processes.kill_group(pid, signal.SIGKILL)  # what the rank started is nobody's now
            self.calls.ended(Ended(rank, pid or int(hello["pid"]), None, signal.SIGKILL))

    def _refusal(self, orders: Orders, hello: Mapping[str, Any]) -> str:
        """Why this guard does not start the rank that it says it is, or nothing."""
        plan, mine = orders.plan, orders.plan.nodes[orders.index]
        rank, said = int(hello["rank"]), f"{hello['said']}, process {hello['pid']}"
        if int(hello["generation"]) == self.halted:
            return f"{said} comes too late: its generation {self.halted} is being ended"
        if int(hello["generation"]) != plan.generation:
            return f"{said} belongs to generation {hello['generation']}, this is generation {plan.generation}"
        if hello["size"] != plan.world_size:
            return f"{said}: the launcher counts {hello['size']} ranks, the plan has {plan.world_size}"
        last = mine.rank_offset + mine.num_ranks - 1
        if not mine.rank_offset <= rank <= last:
            return f"{said} was started here, but by the plan this node has the ranks {mine.rank_offset} to {last}"
        if hello["local_rank"] != rank - mine.rank_offset:
            return (
                f"{said}: the launcher made it local rank {hello['local_rank']}, but by the plan rank {rank} is local "
                f"rank {rank - mine.rank_offset} of this node"
            )
        if rank in self.asked:
            return f"{said} was started a second time: a launcher that starts all ranks of a node ran more than once"
        return ""

    def _answer(self, writer: asyncio.StreamWriter, order: Order) -> None:
        """One byte, with which the held port travels, then one line."""
        if order.listen is not None:
            with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as connection:
                socket.send_fds(connection, [b"+"], [order.listen.fileno()])
        else:
            writer.write(b"-")
        own = {name: value for name, value in self.env.items() if not name.startswith(LAUNCHERS_OWN)}
        env = {name: value for name, value in own.items() if not self.own_devices or name not in DEVICES} | order.env
        writer.write(json.dumps({"argv": order.argv, "env": env, "log": order.log}).encode() + b"\n")
