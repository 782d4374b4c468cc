"""What srun says of tasks that ended or never began: which, by which signal, for want of what. Pure.

It is the only word on a task whose node process can say nothing itself.
"""

from __future__ import annotations

import re
import signal

from trainpkg.launch.slurm.grammar import expand_hosts

# `srun: error: n2: task 1: Killed`, `srun: error: n[1-3]: tasks 0,2-3: Out Of Memory` (22.05 to 24.11)
_TASKS = re.compile(r"srun: error: (?P<hosts>\S+): tasks? (?P<tasks>[\d,-]+): (?P<words>.+)$")
# `srun: error: Task launch for StepId=3.0 failed on node n2: Communication connection failure`
_UNLAUNCHED = re.compile(r"srun: error: Task launch for \S+ failed on node (?P<host>\S+): (?P<words>.+)$")
_MEMORY = "Out Of Memory"
_SIGNALS = {signal.strsignal(signum): signum for signum in signal.Signals}
MAX_TASKS = 100_000

End = tuple[int | None, str]  # the signal, and what was said


def ends(line: str) -> dict[int, End]:
    """{task: (signal, words)} of the tasks that a line tells of; empty for any other line."""
    found = _TASKS.search(line)
    if found is None:
        return {}
    words = found["words"].strip()
    signum = _SIGNALS.get(words.removesuffix(" (core dumped)"))
    if words == _MEMORY:
        signum = signal.SIGKILL
    tasks = expand_hosts(f"[{found['tasks']}]", "srun's words") if found["tasks"] else []
    return {int(task): (signum, words) for task in tasks[:MAX_TASKS]}


def unlaunched(line: str) -> dict[str, str]:
    """{host: why} of a node on which srun could start no task; empty for any other line."""
    found = _UNLAUNCHED.search(line)
    return {found["host"]: found["words"].strip()} if found else {}
