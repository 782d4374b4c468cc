"""`spawn(fn, args, nprocs)`: ranks of one machine started from Python, and the handle by which they are waited for.

As torch.multiprocessing.spawn, on the standard library's multiprocessing: `fn(local_rank, *args)` in processes of
their own. What it adds: the variables that torch's `env://` reads, a failure told with its rank and its cause, and that
no process outlives the parent. Imports no torch; fn may.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import trainpkg
from trainpkg.errors import UserError
from trainpkg.launch import ports, processes
from trainpkg.launch.calls import sweep
from trainpkg.launch.calls.failure import Ended, RankFailedError
from trainpkg.launch.calls.function import Call, check_function, unpicklable
from trainpkg.launch.calls.rank import Birth, live

GATHER_S = 0.3  # victims of a rank that died speak within milliseconds, often before its own end is seen
GRACE_S = 1.0


def spawn(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
) -> Spawned:
    """Call `fn(local_rank, *args)` in `nprocs` processes that know each other by RANK, WORLD_SIZE, MASTER_ADDR, ...

    With `join` it returns when all have ended well; else it returns the handle at once. `daemon`: they end with the
    parent also where that ends well (and may have no children by multiprocessing, whose rule that is).

    Raises:
        UserError: fn or an argument cannot be sent to another process; nothing was started.
        RankFailedError: the first failure of a rank (with `join`, else from the handle's); the others have been ended.
    """
    check_function(fn)
    if nprocs < 1:
        raise UserError(f"nprocs is {nprocs}: at least one process is needed")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "spawn is called while this module is being imported by a process that spawn has started. Put the call "
            'under `if __name__ == "__main__":`'
        )
    spawned = Spawned(nprocs, daemon)
    try:
        spawned.start(fn, tuple(args))
        if join:
            spawned.join()
    except BaseException:
        spawned.kill()
        raise
    return spawned


class Spawned:
    """The processes of one call of `spawn`."""

    def __init__(self, nprocs: int, daemon: bool) -> None:
        self.nprocs, self.daemon = nprocs, daemon
        self.mark = secrets.token_hex(8)
        self.error: RankFailedError | None = None
        self._running: dict[int, tuple[SpawnProcess, int, connection.Connection]] = {}  # rank: process, pidfd, report
        self.pids: list[int] = []  # of all ranks, in rank order
        self._keeper: subprocess.Popen[bytes] | None = None
        self._before = getattr(sys, "last_value", None)
        self._lock = threading.RLock()
        atexit.register(self._at_exit)

    def start(self, fn: Callable[..., object], args: tuple[object, ...]) -> None:
        """Start all ranks. What cannot be sent to them is found before the first one exists."""
        held = ports.hold_port("127.0.0.1", self.mark)
        shared = {
            "WORLD_SIZE": self.nprocs,
            "LOCAL_WORLD_SIZE": self.nprocs,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": held.getsockname()[1],
            sweep.VARIABLE: ",".join(filter(None, [os.environ.get(sweep.VARIABLE), self.mark])),
        }
        tethered = threading.current_thread() is threading.main_thread()  # the kernel's tether is a thread's
        context = multiprocessing.get_context("spawn")
        with held:
            for rank in range(self.nprocs):
                env = {name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
                reads, writes = context.Pipe(duplex=False)
                birth = Birth(env, os.getpid(), tethered, writes, held if rank == 0 else None)
                process = context.Process(
                    target=live, args=(rank, Call(fn, args), birth), name=f"rank-{rank}", daemon=self.daemon
                )
                try:
                    process.start()
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    raise UserError(unpicklable(args, error)) from error
                finally:
                    writes.close()
                assert process.pid is not None
                self._running[rank] = (process, os.pidfd_open(process.pid), reads)
                self.pids.append(process.pid)
                self._keeper = self._keeper or start_keeper(self.mark)
                self._tell_keeper(f"+{process.pid}\n")

    def _tell_keeper(self, text: str) -> None:
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self._keeper.stdin.write(text.encode())
                self._keeper.stdin.flush()

    def join(self, timeout: float | None = None) -> bool:
        """Whether all ranks have ended well within the seconds of `timeout` (None: however long).

        Raises RankFailedError at the first failure, when the others have been ended. Ctrl-C ends them too.
        """
        end = None if timeout is None else time.monotonic() + timeout
        try:
            with self._lock:
                while self._running and self.error is None:
                    left = None if end is None else max(0.0, end - time.monotonic())
                    ended = self._wait(left)
                    if not ended:
                        return False
                    if any(one.failed for one in ended):
                        self._fail(ended)
                self._finish()
        except BaseException:
            self.kill()
            raise
        if self.error is not None:
            raise self.error
        return True

    def kill(self) -> None:
        """End all processes now, and all that they have started. Another thread that joins hears of a failure."""
        self._sweep()
        with self._lock:
            self._finish()

    def _sweep(self) -> None:
        if left := sweep.sweep(self.mark, [self.pids[rank] for rank in list(self._running)]):
            print(f"processes that did not die: {left}", file=sys.stderr, flush=True)

    def _wait(self, timeout_s: float | None) -> list[Ended]:
        """The ranks that end within the time, as soon as there is one."""
        by_pidfd = {pidfd: rank for rank, (_, pidfd, _) in self._running.items()}
        return [self._take(by_pidfd[pidfd]) for pidfd in connection.wait(list(by_pidfd), timeout_s)]  # type: ignore[index]

    def _take(self, rank: int) -> Ended:
        """Collect an ended rank; what it left in its process group ends before its number is free for others."""
        process, pidfd, report = self._running.pop(rank)
        assert process.pid is not None
        os.close(pidfd)
        processes.kill_group(process.pid, signal.SIGKILL)
        process.join(5.0)  # one that cannot be killed hangs nobody
        self._tell_keeper(f"-{process.pid}\n")
        error = {}
        with contextlib.suppress(EOFError, OSError, ValueError):
            if report.poll():
                error = json.loads(report.recv_bytes())
        report.close()
        code = -signal.SIGKILL if process.exitcode is None else process.exitcode
        return Ended(rank, process.pid, code if code >= 0 else None, -code if code < 0 else None, error)

    def _fail(self, ended: list[Ended]) -> None:
        """Hear for a moment what others say, choose the cause, end all."""
        end = time.monotonic() + GATHER_S
        while self._running and (left := end - time.monotonic()) > 0:
            ended += self._wait(left)
        self.error = min((one for one in ended if one.failed), key=lambda one: one.likelihood).failure()
        for process, _, _ in self._running.values():
            process.terminate()
        end = time.monotonic() + GRACE_S
        while self._running and (left := end - time.monotonic()) > 0:
            self._wait(left)

    def _finish(self) -> None:
        """Nothing that any rank has started is left; the keeper has nothing to keep."""
        if self._keeper is None and not self._running:
            return
        self._sweep()
        for rank in list(self._running):
            self._take(rank)
        if self._keeper is not None:
            self._tell_keeper("done\n")
            assert self._keeper.stdin is not None
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()
            self._keeper.wait()
            self._keeper = None
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """A parent that ends by an exception takes its ranks along; after a good end multiprocessing waits for them."""
        if self.daemon or getattr(sys, "last_value", None) is not self._before:
            self.kill()


def start_keeper(mark: str) -> subprocess.Popen[bytes]:
    """The process that ends the ranks should this one be killed."""
    root = str(Path(trainpkg.__file__).parent.parent)
    program = f"import sys; sys.path.insert(0, {root!r}); from trainpkg.launch.calls import sweep; "
    return subprocess.Popen(
        [sys.executable, "-S", "-c", f"{program}sweep.keep({os.getpid()}, {mark!r})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
