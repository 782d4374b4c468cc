"""The fork server: one process per node imports torch once, during the roll call, and every rank is forked from it.

`python -m trainpkg.launch.start.zygote --fd N --preload MODULE,...` answers on a socket that keeps packets apart:
`ready`, then one `started` per order and one `exited` per end. It runs no tensor operation, touches no device and has
one thread: a forked child of a process with threads hangs in the first lock that one of them held. It ends, and all
its ranks with it, when the other end of the socket closes.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from trainpkg.launch import processes
from trainpkg.launch.start import enter

MAX_PACKET = 128 * 1024
_IGNORED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Zygote:
    """Orders in, children out. `control` is a SOCK_SEQPACKET socket."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.ranks: dict[int, int] = {}  # pid -> rank

    def tell(self, **message: Any) -> None:
        self.control.send(json.dumps(message).encode())

    def preload(self, modules: list[str]) -> bool:
        """Import what all ranks need. False, and said, when that failed or left a thread behind."""
        begin = time.monotonic()
        gc.disable()  # imports leave hardly any garbage, and looking for it takes a tenth of their time
        try:
            for module in modules:
                importlib.import_module(module)
        except BaseException:  # noqa: BLE001  # an import can raise anything, SystemExit too
            self.tell(event="failed", message=f"cannot import {module}", traceback=traceback.format_exc()[-8000:])
            return False
        num_threads = sum(1 for _ in Path("/proc/self/task").iterdir())
        if num_threads > 1:
            self.tell(event="failed", message=f"{num_threads} threads after importing {', '.join(modules)}")
            return False
        gc.collect()
        gc.freeze()  # the collector must not write to the pages that the children share
        gc.enable()
        self.tell(event="ready", seconds=round(time.monotonic() - begin, 3))
        return True

    def serve(self) -> None:
        """Start ranks and report their ends until the node closes its end."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake_read in ready:
                os.read(wake_read, 4096)
                self.report_ends()
            if self.control.fileno() in ready:
                packet, fds, _, _ = socket.recv_fds(self.control, MAX_PACKET, 1)
                if not packet:
                    return
                self.start(json.loads(packet), fds, (wake_read, wake_write))

    def start(self, order: dict[str, Any], fds: list[int], private: tuple[int, ...]) -> None:
        """Fork one rank. An environment value of None removes the variable."""
        env = dict(os.environ)
        for name, value in order["env"].items():
            env.pop(name, None) if value is None else env.update({name: value})
        if fds:
            env["TRAINPKG_LISTEN_FD"] = str(fds[0])
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                self.control.close()
                for fd in private:
                    os.close(fd)
                enter.become_rank(parent, order["log"], env)
                for stream in (sys.stdout, sys.stderr):  # block-buffered by default, being files
                    stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
                os._exit(1)
            enter.run_and_exit(order["entry"])
        self.ranks[pid] = order["rank"]
        for fd in fds:
            os.close(fd)  # the child holds the only copy: its death frees the port
        self.tell(event="started", rank=order["rank"], pid=pid)

    def report_ends(self) -> None:
        """One `exited` per ended rank; what is left of its process group dies before the id can be used again."""
        for pid in list(self.ranks):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            processes.kill_group(pid, signal.SIGKILL)
            code, signum = processes.ending(os.waitpid(pid, 0)[1])
            self.tell(event="exited", rank=self.ranks.pop(pid), pid=pid, exit_code=code, signal=signum)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--preload", default="")
    args = parser.parse_args()
    for signum in _IGNORED:  # Slurm and terminals signal everybody; the node alone decides
        signal.signal(signum, signal.SIG_IGN)
    processes.die_with_parent(signal.SIGKILL)
    if os.getppid() != args.parent:
        return
    zygote = Zygote(socket.socket(fileno=args.fd))
    try:
        if zygote.preload([module for module in args.preload.split(",") if module]):
            zygote.serve()
    except (BrokenPipeError, ConnectionResetError):  # the node is gone; it takes nothing to follow it
        pass
    os._exit(0)  # ranks still alive die by PR_SET_PDEATHSIG


if __name__ == "__main__":
    main()
