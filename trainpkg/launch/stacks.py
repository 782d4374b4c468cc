"""Where a process is that does nothing: its Python stack on demand, and what the kernel says of it.

`register` is for ranks: a signal that nobody else uses makes faulthandler write the stacks of all threads to standard
error, also while the interpreter's lock is held somewhere in C. The rest is for the node, which sends that signal and
reads the rank's log. Standard library only.
"""

from __future__ import annotations

import faulthandler
import re
import signal
from dataclasses import dataclass
from pathlib import Path

SIGNAL = signal.SIGRTMIN + 11  # NCCL takes USR1, Slurm's users take USR1 and USR2, glibc the first two real-time ones
MAX_FRAMES = 12
STOPPED = "T"  # by SIGSTOP and its like; one that a debugger holds is in "t"
_BLOCK = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


@dataclass(frozen=True)
class Stack:
    """The main thread's frames, innermost first, as `function (folder/file.py:line)`; `state` as in /proc/PID/stat."""

    frames: tuple[str, ...] = ()
    state: str = ""


def ignore() -> None:
    """Until `register`, in a process that is about to become another program too: its default action is death."""
    signal.signal(SIGNAL, signal.SIG_IGN)


def register() -> None:
    """Write the stacks of all threads to standard error on SIGNAL, and before this process dies of a fault."""
    faulthandler.register(SIGNAL, file=2, all_threads=True, chain=False)
    faulthandler.enable(file=2)


def parse(text: str) -> tuple[str, ...]:
    """The main thread's frames of the last dump in a text; empty when there is none."""
    blocks: list[tuple[bool, list[str]]] = []
    inside = False
    for line in text.splitlines():
        if _BLOCK.match(line):
            blocks.append((line.startswith("Current"), []))
            inside = True
        elif inside and (frame := _FRAME.match(line)):
            path, number, function = frame.groups()
            blocks[-1][1].append(f"{function} ({'/'.join(Path(path).parts[-2:])}:{number})")
        elif line.strip():
            inside = False
    # the signal goes to the main thread where that can take it, and the dump has the oldest thread last
    found = next((frames for current, frames in reversed(blocks) if current), blocks[-1][1] if blocks else [])
    return tuple(found[:MAX_FRAMES])


def state_of(pid: int) -> str:
    """R, S, D (in the kernel, deaf to signals), T (stopped), Z; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""
