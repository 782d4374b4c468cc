"""The last steps before a rank's own code: become a process that dies with its node, then call the entry.

Used by the fork server in the forked child, and as `python -m trainpkg.launch.start.enter ENTRY` where each rank is a
program of its own.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping

from trainpkg.launch import processes, stacks

# Slurm sends its warning signal to every process of the step, whenever it likes: before the rank's own handlers stand,
# it must not kill. The node repeats the request once the rank has joined.
IGNORED_UNTIL_HANDLED = (signal.SIGUSR1, signal.SIGUSR2)


def become_rank(parent: int, log: str, env: Mapping[str, str]) -> None:
    """Own process group, death with the parent, plain signals, own log, own environment."""
    os.setpgid(0, 0)
    processes.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    for signum in IGNORED_UNTIL_HANDLED:
        signal.signal(signum, signal.SIG_IGN)
    stacks.ignore()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.environ.clear()
    os.environ.update(env)


def run_entry(entry: str) -> int:
    """Import `module:function` and call it without arguments; what it returns is the exit status (None: 0)."""
    stacks.register()  # before the import, which may hang too
    module, _, function = entry.partition(":")
    status = getattr(importlib.import_module(module), function or "main")()
    return 0 if status is None else int(status)


def run_and_exit(entry: str) -> None:
    """Call the entry and end the process without the interpreter's finalisation: gloo's threads may still be alive."""
    status = 1
    try:
        status = run_entry(entry)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # the frame above belongs to the fork server and must never be reached
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                status = status or 1
        os._exit(status & 0xFF)


if __name__ == "__main__":
    run_and_exit(sys.argv[1])
