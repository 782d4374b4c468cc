"""docs/faults.md: what became of each fault, as a table and in the last words of each way. Starts nothing."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import torch

HEALTHY = "none"
TEXT = """\
# Faults injected on a real Slurm: seconds to the verdict

Written by `python -m benchmarks.faults` on {date}; do not edit. One try per cell, on {cores} cores of {machine} shared
with other work (load {load}); {slurm}, Python {python}, torch {torch}.

Two nodes x two ranks, each way in a job of its own: `trainpkg launch` (spawn, no restarts, else its defaults) with the
trainer; `srun torchrun --rdzv-backend=c10d` with a small DDP script (benchmarks/tiny_ddp.py), as tutorials have it.
Seconds count from the fault, or from the start of the command where the fault was there before. *names it*: the first
line that names the rank, node, port or firewall that is at fault. *is over*: the command and all processes. A way that
is still there after {cap:.0f} s, or so long after the time of a healthy start, is ended by us: *never* means that.

| fault | launch names it | launch is over | torchrun names it | torchrun is over |
|---|---|---|---|---|
"""


@dataclass
class Result:
    """Seconds from the fault, or from the start where it was there before; None: not within `cap_s`."""

    cap_s: float
    trains_s: float | None = None  # the first step, in spite of a fault that was there before
    named_s: float | None = None  # the first line that names the fault
    ended_s: float | None = None  # the command's end
    over_s: float | None = None  # that of all its processes on all nodes that have power
    verdict: str = ""
    blamed: str = ""  # somebody else, by a verdict
    load: float = 0.0

    def hear(self, output: str, right: str) -> None:
        """Keep the last words; `right` is an expression that names the fault."""
        causes = root_causes(output)
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        self.verdict = "; ".join(causes) or (lines[-1] if lines else "")
        wrong = [one for one in causes if right and not re.search(right, one)]
        self.blamed = re.sub("Root Cause: |, exitcode.*", "", wrong[0]) if wrong else ""

    @property
    def cells(self) -> tuple[str, str]:
        """When it named the fault, and when it was over."""
        if self.trains_s is not None:
            return "not needed", f"trains after {self.trains_s:.1f} s"
        named = "never" if self.named_s is None else f"{self.named_s:.1f} s"
        named += f", and blames {self.blamed}" if self.blamed else ""
        over = "never" if self.over_s is None else f"{self.over_s:.1f} s"
        if self.ended_s is not None and (self.over_s is None or self.over_s > self.ended_s + 2):
            over = f"{self.ended_s:.1f} s; its last process: {over}"
        return named, over


def root_causes(output: str) -> list[str]:
    """What the agents of torchrun call the root cause, each in one line."""
    blocks = re.findall(r"^Root Cause.*?host\s*: (\S+).*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", output, re.M | re.S)
    return [f"Root Cause: host {host}, rank {rank}, exitcode {code}" for host, rank, code in blocks]


def page(rows: Sequence[tuple[str, dict[str, Result]]], slurm: str, cap_s: float) -> str:
    """The page as Markdown."""
    loads = [result.load for _, found in rows for result in found.values()]
    text = TEXT.format(
        date=date.today(), cores=os.cpu_count(), machine=platform.machine(), slurm=slurm,
        load=f"{min(loads):.1f} to {max(loads):.1f}", python=platform.python_version(), torch=torch.__version__,
        cap=cap_s,
    )  # fmt: skip
    for name, found in rows:
        cells = [cell for result in found.values() for cell in result.cells]
        text += f"| {' | '.join([name, *cells])} |\n"
    text += "\n## What they said last\n"
    for name, found in rows:
        text += f"\n**{name}**\n\n"
        text += "".join(f"- {way}: `{result.verdict[:600].replace('`', chr(39))}`\n" for way, result in found.items())
    return text
