"""Kills of a training on the lab's Slurm: what is killed, and at which moment. Knows nothing of what must follow.

A kill names a target and a moment; `luck` (0 to 1) is how far into the moment it strikes, `pick` chooses among victims.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.submitted import Submitted

PYTHON = sys.executable
# how long a moment lasts under the slow-down, more or less: kills fall anywhere in it, and a little behind
SECONDS = {"start": 1.5, "step": 0.1, "evaluation": 0.45, "save": 0.7, "end": 0.7}
AWAY_S = (0.5, 4.0)  # how long a machine or daemon is gone


@dataclass(frozen=True)
class Kill:
    """`after`: the how-manieth such moment of the life."""

    target: str
    moment: str
    after: int
    luck: float
    pick: float

    @property
    def delay_s(self) -> float:
        return self.luck * SECONDS[self.moment]

    @property
    def ends_life(self) -> bool:
        return self.target != "slurmd"

    def __str__(self) -> str:
        return f"{self.target}, {self.moment}"


def drawn(number: int, seed: int, targets: tuple[str, ...], moments: tuple[str, ...]) -> list[Kill]:
    """Each target at each moment once before any comes again, in random order."""
    draw = random.Random(seed)
    found: list[Kill] = []
    while len(found) < number:
        pairs = [(target, moment) for target in targets for moment in moments]
        draw.shuffle(pairs)
        for target, moment in pairs:
            most = {"step": 12, "start": 1, "end": 1}.get(moment, 2)
            found.append(Kill(target, moment, draw.randint(1, most), draw.random(), draw.random()))
    return found[:number]


def strike(run: Submitted, kill: Kill) -> str | None:
    """Wait for the moment, kill, and wait for the next life; returns where it was and what was hit.

    None where the run finished before.
    """
    if not run.until(lambda: reached(run, kill), str(kill)):
        return None
    time.sleep(kill.delay_s)
    hit: list[str] = []
    lives = []

    def try_it() -> bool:
        moment, lives[:] = run.moment, run.lives()
        with contextlib.suppress(ProcessLookupError):
            if what := TARGETS[kill.target](run, kill):
                hit.append(f"{moment}: {what}")
        return bool(hit)

    run.until(try_it, f"{kill.target} in life {lives}")
    if kill.ends_life:
        run.until(lambda: run.lives() != lives, f"the life after {hit}")
    return hit[0] if hit else None


def reached(run: Submitted, kill: Kill) -> bool:
    """Whether the moment is there."""
    if run.in_vain() > 2:  # the launcher rightly gives up what thrice saved nothing
        return False
    if kill.moment == "start":
        return bool(run.lives())
    log = run.log()
    if kill.moment == "step":
        return len(re.findall(r"^chaos: step ", log, re.MULTILINE)) >= kill.after
    if kill.moment == "evaluation":
        return run.moment.startswith("evaluation") and log.count("chaos: evaluation\n") >= kill.after
    if kill.moment == "save":
        return run.moment.startswith("save") and log.count("chaos: latest step-") >= kill.after - 1
    return run.moment == kill.moment


# --- what is killed: each returns what it hit, nothing where its victim is not there ---


def rank(run: Submitted, kill: Kill) -> str:
    return _kill_one(run.ranks(), kill.pick, "rank")


def worker(run: Submitted, kill: Kill) -> str:
    return _kill_one(run.helpers(), kill.pick, "loader worker of rank")


def _kill_one(found: list[tuple[int, str, int]], pick: float, name: str) -> str:
    if not found:
        return ""
    number, host, pid = found[int(pick * len(found))]
    os.kill(pid, signal.SIGKILL)
    return f"{name} {number} on {host}"


def scribe(run: Submitted, kill: Kill) -> str:
    """The process that writes a rank's checkpoints beside training; there is none where the rank writes itself."""
    return _program(run, kill, "scribe", PYTHON, "-m trainpkg.runtime.checkpoints.scribe") or rank(run, kill)


def forkserver(run: Submitted, kill: Kill) -> str:
    """The process that the ranks of a node are forked from."""
    return _program(run, kill, "fork server", PYTHON, "-m trainpkg.launch.start.zygote")


def node(run: Submitted, kill: Kill) -> str:
    return _program(run, kill, "node process", PYTHON, "-m trainpkg node")


def srun(run: Submitted, kill: Kill) -> str:
    return _program(run, kill, "srun", "srun")


def launch(run: Submitted, kill: Kill) -> str:
    return _program(run, kill, "launcher", PYTHON, "-m trainpkg launch")


def _program(run: Submitted, kill: Kill, name: str, *words: str) -> str:
    found = run.programs(*words)
    if not found:
        return ""
    host, pid = found[int(kill.pick * len(found))]
    os.kill(pid, signal.SIGKILL)
    return f"{name} on {host}"


def slurmd(run: Submitted, kill: Kill) -> str:
    """A node's daemon dies and is back before Slurm gives the node up: the run should not notice."""
    return _end_daemon(run, kill, _away(kill))


def slurmd_for_long(run: Submitted, kill: Kill) -> str:
    """... and is away until Slurm has given the node up and put the job back, while its processes live on."""
    host = _host(run, kill)
    job, restarts = run.jobs[-1], run.lab.job(run.jobs[-1]).get("Restarts")

    def given_up() -> bool:
        now = run.lab.job(job)
        return now["JobState"] != "RUNNING" or now.get("Restarts") != restarts

    hit = _end_daemon(run, kill, None)
    run.until(given_up, f"Slurm to give {host} up")
    run.lab.start_daemon(host)
    return f"{hit}, for good"


def _end_daemon(run: Submitted, kill: Kill, seconds: float | None) -> str:
    host = _host(run, kill)
    if host not in run.lab.daemons:
        return ""
    daemon = run.lab.daemons.pop(host)
    daemon.kill()
    daemon.wait()
    if seconds is not None:
        run.later.append((time.monotonic() + seconds, lambda: run.lab.start_daemon(host)))
    return f"slurmd of {host}"


def power(run: Submitted, kill: Kill) -> str:
    """A node loses its power and boots again."""
    host = _host(run, kill)
    run.lab.crash(host)
    run.later.append((time.monotonic() + _away(kill), lambda: run.lab.boot(host)))
    return f"power of {host}"


def _host(run: Submitted, kill: Kill) -> str:
    hosts = [host for host in run.hosts() if host in run.lab.realms]
    return hosts[int(kill.pick * len(hosts))]


def _away(kill: Kill) -> float:
    least, most = AWAY_S
    return least + kill.luck * (most - least)


def cancel(run: Submitted, kill: Kill) -> str:
    """The whole job, as a person ends it: SIGTERM to everything, a little later SIGKILL."""
    run.lab.run(["scancel", run.jobs[-1]])
    return f"job {run.jobs[-1]} by scancel"


def job(run: Submitted, kill: Kill) -> str:
    """The whole job at one blow."""
    run.lab.run(["scancel", "--full", "--signal=KILL", run.jobs[-1]])
    return f"job {run.jobs[-1]} by scancel --full --signal=KILL"


def stop(run: Submitted, kill: Kill) -> str:
    """Slurm's warning signal: save, and go on in another life of the job."""
    if not run.programs(PYTHON, "-m trainpkg node"):  # scancel signals steps, and there is none yet
        return ""
    run.lab.run(["scancel", "--signal=USR2", run.jobs[-1]])
    return f"warning to job {run.jobs[-1]}"


def stop_file(run: Submitted, kill: Kill) -> str:
    """A person's wish to stop."""
    (run.folder / "stop").touch()
    return "file stop"


TARGETS: dict[str, Callable[[Submitted, Kill], str]] = {
    "rank": rank,
    "loader worker": worker,
    "scribe": scribe,
    "fork server": forkserver,
    "node process": node,
    "srun": srun,
    "launcher": launch,
    "slurmd": slurmd,
    "slurmd for long": slurmd_for_long,
    "power of a node": power,
    "scancel": cancel,
    "job by SIGKILL": job,
    "warning signal": stop,
    "file stop": stop_file,
}
