"""PID 1 of a lab's or a node's namespaces: keeps them, and ends them for certain.

Ending PID 1 of a PID namespace makes the kernel kill every process in it, however it was started; mounts and network
devices go with the last process. So taking a lab down is: this process removes the work directory and returns.
It starts nothing itself (lab.py enters the namespaces for that). Standard library only, run as a plain script.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time


def main(arguments: list[str]) -> None:
    """Without arguments: stay until killed. With `OWNER_PIDFD WORK_DIR`: until the owner dies or closes our stdin."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps every orphan by itself
    print("up", flush=True)
    if not arguments:
        signal.pause()
        return
    owner, work_dir = int(arguments[0]), arguments[1]
    poller = select.poll()
    poller.register(owner, select.POLLIN)  # readable when the owner has died, SIGKILL included
    poller.register(sys.stdin, select.POLLIN | select.POLLHUP)
    poller.poll()
    os.kill(-1, signal.SIGKILL)  # all but this process, nested namespaces included
    for _ in range(50):  # the killed may still write for a moment
        shutil.rmtree(work_dir, ignore_errors=True)
        if not os.path.exists(work_dir):  # noqa: PTH110 - pathlib would double the start-up time
            break
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1:])
