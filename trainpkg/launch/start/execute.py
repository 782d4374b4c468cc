"""A program of its own per rank."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import dataclass, field

from trainpkg.launch import processes
from trainpkg.launch.start import enter
from trainpkg.launch.start.starter import Calls, Ended, Order, Orders


@dataclass
class ExecStarter:
    """A program of its own per rank: each imports everything itself, nothing is shared."""

    env: dict[str, str]
    calls: Calls
    own_imports: bool = True
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)  # rank -> process
    helpers: list[int] = field(default_factory=list)

    async def ready(self) -> str:
        return "ranks start as programs of their own"

    def start(self, orders: Orders) -> None:
        for order in orders.ranks:
            self._start(order)

    def _start(self, order: Order) -> None:
        env = dict(self.env)
        for name, value in order.env.items():
            env.pop(name, None) if value is None else env.update({name: value})
        fds = (order.listen.fileno(),) if order.listen else ()
        if order.listen:
            env["TRAINPKG_LISTEN_FD"] = str(order.listen.fileno())
        parent = os.getpid()
        process = subprocess.Popen(
            order.argv,
            env=env,
            pass_fds=fds,
            preexec_fn=lambda: enter.become_rank(parent, order.log, env),
        )
        if order.listen:
            order.listen.close()  # the rank holds the only copy: its death frees the port
        self.running[order.rank] = process
        self.calls.started(order.rank, process.pid)
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, self._ended, order.rank, process, pidfd)

    def _ended(self, rank: int, process: subprocess.Popen[bytes], pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        processes.kill_group(process.pid, signal.SIGKILL)  # before it is reaped and its id free for others
        code = process.wait()
        self.running.pop(rank)
        self.calls.ended(Ended(rank, process.pid, code if code >= 0 else None, -code if code < 0 else None))

    def stop(self) -> None:
        """Nothing runs beside the ranks."""

    def close(self) -> None:
        for process in self.running.values():
            processes.kill_group(process.pid, signal.SIGKILL)
            process.wait()
