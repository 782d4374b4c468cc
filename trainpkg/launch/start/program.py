"""One program of somebody else's per node, which starts the node's ranks as guards, or is itself all that there is.

Which program that is comes as a function of the node's orders (see `torchrun` and `command`). Its output goes to a log
of its own. Its end is told; what that means is the node's to say.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from trainpkg.launch import processes
from trainpkg.launch.start import enter
from trainpkg.launch.start.guards import Guards
from trainpkg.launch.start.starter import Calls, Ended, Orders, ProgramEnded, StartFailed

MakeCommand = Callable[[Orders, str], list[str]]  # of the orders and a folder of this node's own


class ProgramStarter(Guards):
    """Starts `name`, whose command line `command` makes. `foreign`: it is the one unit of the node, named by the node.

    Its environment is the node's without what would make it, or what it starts, a rank already.
    """

    def __init__(self, env: dict[str, str], calls: Calls, name: str, command: MakeCommand, foreign: bool) -> None:
        super().__init__(env, calls)
        self.name, self.command, self.foreign = name, command, foreign
        self.scratch = tempfile.mkdtemp(prefix="trainpkg-")
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.log = Path(os.devnull)

    async def ready(self) -> str:
        return f"ranks are started by a {self.name} of this node"

    def start(self, orders: Orders) -> None:
        super().start(orders)
        argv, env = self.command(orders, self.scratch), dict(self.env)
        for name, value in orders.env.items():
            env.pop(name, None) if value is None else env.update({name: value})
        if shutil.which(argv[0], path=env.get("PATH")) is None:
            raise StartFailed(f"there is no program {argv[0]!r} on this node (PATH={env.get('PATH')})")
        self.log = orders.folder / f"{self.name}-{orders.index}.log"
        parent, log = os.getpid(), str(self.log)
        with self.log.open("a") as file:
            file.write(f"+ {subprocess.list2cmdline(argv)}\n")
        self.process = subprocess.Popen(
            argv, env=env, preexec_fn=lambda: enter.become_rank(parent, log, env), executable=shutil.which(argv[0])
        )
        self.pidfd = os.pidfd_open(self.process.pid)
        if self.foreign:
            self.calls.started(orders.index, self.process.pid)
        asyncio.get_running_loop().add_reader(self.pidfd, self._ended, orders.index)

    def _ended(self, index: int) -> None:
        assert self.process is not None
        pid, status = self.process.pid, self._reap()
        code, signum = (status, None) if status >= 0 else (None, -status)
        if self.foreign:
            self.calls.ended(Ended(index, pid, code, signum))
        else:
            self.calls.program_ended(ProgramEnded(self.name, pid, code, signum, self.log))

    def _reap(self) -> int:
        """Wait for the program, with nothing left of its process group; its status as subprocess has it."""
        assert self.process is not None
        asyncio.get_running_loop().remove_reader(self.pidfd)
        os.close(self.pidfd)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        processes.kill_group(self.process.pid, signal.SIGKILL)  # before it is reaped and its id free for others
        process, self.process = self.process, None
        return process.wait()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._reap()

    def close(self) -> None:
        self.stop()
        super().close()
        shutil.rmtree(self.scratch, ignore_errors=True)
