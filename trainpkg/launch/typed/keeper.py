"""The process that people see of a typed node: its child does the work, and nothing of that outlives either of them.

A node that is killed without a word (by hand, by the kernel when memory runs out) cannot end what its ranks have
started; its parent can. And a parent that is killed is noticed by its child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType

from trainpkg.errors import UserError
from trainpkg.launch import processes

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
PARENT_GONE = signal.SIGCONT


def keep(work: Callable[[], int]) -> int:
    """The status of `work`, done in a child in a session of its own; signals to this process are passed on to it."""
    processes.adopt_orphans()
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        _work(work, parent)
    for signum in FORWARDED:
        # ignored by nohup is meant; SIGINT is ignored in every background command of a script, and Ctrl-C ends all
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda number, _frame: _forward(child, number, _frame))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code, killed_by = processes.ending(os.waitpid(child, 0)[1])
    if left := processes.kill_descendants():
        print(f"processes that did not die: {left}", file=sys.stderr, flush=True)
    if code is None:
        print(f"trainpkg: the launcher of this node was killed by signal {killed_by}", file=sys.stderr, flush=True)
    return code if code is not None else 128 + (killed_by or 0)


def _forward(child: int, signum: int, frame: FrameType | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signum)


def _work(work: Callable[[], int], parent: int) -> None:
    """The child's life; never returns."""
    status = 1
    try:
        os.setsid()  # Ctrl-C reaches the parent alone, which passes it on once
        processes.die_with_parent(PARENT_GONE)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        status = work() if os.getppid() == parent else 1
    except UserError as error:
        print(f"trainpkg: error: {error}", file=sys.stderr)
        status = error.status
    except KeyboardInterrupt:
        status = 130
    except BaseException:  # noqa: BLE001  # the frames above belong to the parent
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)
