"""Entering, and looking into, the Linux namespaces of a lab. Knows nothing of Slurm.

A `Realm` is one set of PID, mount, network, host name and IPC namespaces, held by its PID 1 (lab_init.py).
Everything that runs in one is started through `nsenter` and dies with that PID 1.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

INIT = Path(__file__).with_name("lab_init.py")
KINDS = ("--mount", "--uts", "--ipc", "--net", "--pid")


class Entered(subprocess.Popen[str]):
    """A process that `nsenter` started: signals go to the process itself, since `nsenter` passes none on.

    `pid` is that of `nsenter` on the machine; the status is the command's own. The command dies with `nsenter`.
    """

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            for child in children(self.pid):
                os.kill(child, sig)
                return
            super().send_signal(sig)  # so early that there is no child yet


class Realm:
    """One set of namespaces. `pid` is its PID 1 as the machine counts; `pid_outside` as the enclosing realm does."""

    def __init__(self, within: Realm | None, init_arguments: Sequence[str] = (), pass_fds: Sequence[int] = ()) -> None:
        inside = [*enter(within.pid)] if within else []
        command = [*inside, "unshare", *KINDS, "--fork", "--kill-child", "--mount-proc"]
        command += [sys.executable, "-ISE", str(INIT), *init_arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C is the owner's to handle
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"up\n":
            _, messages = self.process.communicate(timeout=10)
            raise RuntimeError(f"no namespaces: {' '.join(command)} said: {messages.decode()}")
        self.pid: int = self.process.pid
        for _ in range(2 if within else 1):  # nsenter -> unshare -> PID 1
            self.pid = next(children(self.pid))
        self.pid_outside = namespace_pids(self.pid)[-2]

    def command(self, argv: Sequence[str | Path], cwd: str | Path = "/") -> list[str]:
        """The command line that runs `argv` in here. It dies with the process that enters."""
        return [*enter(self.pid), "setpriv", "--pdeathsig", "KILL", "env", f"--chdir={cwd}", *map(str, argv)]

    def popen(self, argv: Sequence[str | Path], cwd: str | Path = "/", **keywords: Any) -> Entered:
        return Entered(self.command(argv, cwd), text=True, **keywords)

    def script(self, text: str) -> None:
        """Run lines of shell in here; any that fails is an error that carries its messages."""
        process = self.popen(["sh", "-euc", text], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, messages = process.communicate(timeout=30)
        if process.returncode:
            raise RuntimeError(f"set-up of namespaces failed ({process.returncode}): {messages.strip()}\n{text}")

    def processes(self) -> Iterator[tuple[int, int, str]]:
        """(pid on the machine, pid in here, command line) of all processes but PID 1."""
        own = namespace(self.pid)
        for pid in all_pids():
            if pid != self.pid and namespace(pid) == own and (cmdline := command_line(pid)):
                for inside in namespace_pids(pid)[-1:]:  # none where it has ended meanwhile
                    yield pid, inside, cmdline

    def end(self) -> None:
        """Have PID 1 clean up and end; return when every process in here is gone, which the kernel sees to."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self.kill()

    def kill(self) -> None:
        """As if the power was cut."""
        with self.process:  # closes its pipes and waits
            if self.process.poll() is None:
                os.kill(self.pid, signal.SIGKILL)


def enter(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), *KINDS, "--"]


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def status_field(pid: int, field: str) -> list[str]:
    """Words of a line of /proc/PID/status; none when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    return next((line.split()[1:] for line in text.splitlines() if line.startswith(f"{field}:")), [])


def children(pid: int) -> Iterator[int]:
    return (other for other in all_pids() if status_field(other, "PPid") == [str(pid)])


def namespace_pids(pid: int) -> list[int]:
    """The process's pid on the machine, then in each namespace further in."""
    return [int(word) for word in status_field(pid, "NSpid")]


def namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def command_line(pid: int) -> str:
    """Words joined by spaces; empty for a zombie or a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
