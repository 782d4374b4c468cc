"""Ranks forked from a fork server that has imported torch once (see `zygote`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

from trainpkg.launch import processes
from trainpkg.launch.start.starter import Calls, Ended, Order, Orders, StartFailed
from trainpkg.launch.start.zygote import MAX_PACKET


class ForkStarter:
    """Ranks forked from a fork server (see `zygote`)."""

    own_imports = False

    def __init__(self, preload: list[str], env: dict[str, str], calls: Calls) -> None:
        self.calls = calls
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # an OpenBLAS with threads of its own would forbid the fork; torch's thread number is OMP_NUM_THREADS' own
        env = {**env, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "trainpkg.launch.start.zygote", f"--fd={theirs.fileno()}"]
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

    def start(self, orders: Orders) -> None:
        for order in orders.ranks:
            self._start(order)

    def _start(self, order: Order) -> None:
        message = {"rank": order.rank, "entry": order.entry, "env": order.env, "log": order.log}
        fds = [order.listen.fileno()] if order.listen else []
        self.control.setblocking(True)  # a burst of orders may fill the socket; the fork server always reads
        try:
            socket.send_fds(self.control, [json.dumps(message).encode()], fds)
        except OSError as error:
            raise StartFailed(f"the fork server is gone ({error.strerror})") from error
        finally:
            self.control.setblocking(False)
            if order.listen:
                order.listen.close()  # the rank holds the only copy: its death frees the port

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

    def stop(self) -> None:
        """Nothing runs beside the ranks."""

    def close(self) -> None:
        if self.control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.control.fileno())
            self.control.close()
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
