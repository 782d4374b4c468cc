"""How the processes of one node start. One protocol; `spawn` is the first of its kinds.

A starter only starts processes and tells how they ended. Who is which rank, who is told to stop and what an end means
is decided in `node` and above.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from trainpkg.launch import enter, processes
from trainpkg.launch.spec import Spec
from trainpkg.launch.zygote import MAX_PACKET


@dataclass(frozen=True)
class Order:
    """One rank to start. `env` changes the node's environment: None removes a variable."""

    rank: int
    entry: str
    env: dict[str, str | None]
    log: str
    listen: socket.socket | None = None


@dataclass(frozen=True)
class Ended:
    """How the process of a rank ended: by `exit_code` or by `signal`."""

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None


class StartFailed(Exception):
    """Ranks cannot be started in this way; the text says why, `details` has the traceback if there is one."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


@dataclass
class Calls:
    """What a starter calls back, in the event loop."""

    started: Callable[[int, int], None]  # rank, pid
    ended: Callable[[Ended], None]
    failed: Callable[[str, int | None], None]  # the starter itself is gone: why, by which signal


class Starter(Protocol):
    """Starts the ranks of one node."""

    async def ready(self) -> str:
        """Wait until ranks can be started; returns a line for the node's log. Raises StartFailed."""

    def start(self, order: Order) -> None:
        """Start one rank; `calls.started` and, at its end, `calls.ended` follow."""

    @property
    def helpers(self) -> list[int]:
        """Processes of the starter's own, which outlive a generation of ranks."""

    def close(self) -> None:
        """End the helpers, and with them whatever ranks are left."""


def make_starter(spec: Spec, env: dict[str, str], calls: Calls) -> Starter:
    """The starter that the spec asks for, its preparations already under way. `env` holds what imports read."""
    assert spec.backend == "spawn", spec.backend
    return ForkStarter(spec.preload, env, calls) if spec.start == "fork" else ExecStarter(env, calls)


class ForkStarter:
    """Ranks forked from a fork server (see `zygote`)."""

    def __init__(self, preload: list[str], env: dict[str, str], calls: Calls) -> None:
        self.calls = calls
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # an OpenBLAS with threads of its own would forbid the fork; torch's thread number is OMP_NUM_THREADS' own
        env = {**env, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "trainpkg.launch.zygote", f"--fd={theirs.fileno()}"]
        command += [f"--parent={os.getpid()}", f"--preload={','.join(preload)}"]
        self.process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        ours.setblocking(False)
        self.control = ours
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # it may never be asked for
        asyncio.get_running_loop().add_reader(ours.fileno(), self._read)

    @property
    def helpers(self) -> list[int]:
        return [self.process.pid]

    async def ready(self) -> str:
        return await asyncio.shield(self._ready)

    def start(self, order: Order) -> None:
        message = {"rank": order.rank, "entry": order.entry, "env": order.env, "log": order.log}
        fds = [order.listen.fileno()] if order.listen else []
        self.control.setblocking(True)  # a burst of orders may fill the socket; the fork server always reads
        try:
            socket.send_fds(self.control, [json.dumps(message).encode()], fds)
        except OSError as error:
            raise StartFailed(f"the fork server is gone ({error.strerror})") from error
        finally:
            self.control.setblocking(False)

    def _read(self) -> None:
        while True:
            try:
                packet = self.control.recv(MAX_PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                asyncio.get_running_loop().remove_reader(self.control.fileno())
                self._gone()
                return
            message = json.loads(packet)
            event = message.pop("event")
            if event == "ready":
                self._ready.set_result(f"fork server ready in {message['seconds']:.2f} s")
            elif event == "failed" and not self._ready.done():
                self._ready.set_exception(StartFailed(message["message"], message.get("traceback", "")))
            elif event == "started":
                self.calls.started(message["rank"], message["pid"])
            elif event == "exited":
                self.calls.ended(Ended(**message))

    def _gone(self) -> None:
        code, signum = processes.ending(os.waitpid(self.process.pid, 0)[1])
        self.process.returncode = code if code is not None else -(signum or 0)
        text = f"the fork server ended by {signal.Signals(signum).name if signum else f'exit {code}'}"
        if not self._ready.done():
            self._ready.set_exception(StartFailed(text))
        elif self._ready.exception() is None:  # else it has said why, and started nothing
            self.calls.failed(text, signum)

    def close(self) -> None:
        if self.control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.control.fileno())
            self.control.close()
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()


@dataclass
class ExecStarter:
    """A program of its own per rank: each imports everything itself, nothing is shared."""

    env: dict[str, str]
    calls: Calls
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)  # rank -> process
    helpers: list[int] = field(default_factory=list)

    async def ready(self) -> str:
        return "ranks start as programs of their own"

    def start(self, order: Order) -> None:
        env = dict(self.env)
        for name, value in order.env.items():
            env.pop(name, None) if value is None else env.update({name: value})
        fds = (order.listen.fileno(),) if order.listen else ()
        if order.listen:
            env["TRAINPKG_LISTEN_FD"] = str(order.listen.fileno())
        parent = os.getpid()
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "trainpkg.launch.enter", order.entry],
            env=env,
            pass_fds=fds,
            preexec_fn=lambda: enter.become_rank(parent, order.log, env),
        )
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

    def close(self) -> None:
        for process in self.running.values():
            processes.kill_group(process.pid, signal.SIGKILL)
            process.wait()
