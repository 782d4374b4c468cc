"""A run on the lab's Slurm, submitted until it is finished as Snakemake's retries do, and what can be seen of it.

Each job is the command that the rule `train` has. A job that puts itself back into the queue, or that Slurm puts there,
is waited for; one that ended in any other way is submitted again with the next number of a retry.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT
from tests.cluster.namespaces import children, command_line
from tests.cluster.project import Project
from trainpkg.launch.head import history

LIMIT_S = 400.0  # for anything that is waited for, on a machine that is busy with other things
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY"}
LOOK_S = 0.5  # between questions to Slurm
SLOWED = f"{CHECKOUT / 'tests/cluster/slowed'}:{CHECKOUT}"

Life = tuple[int, int]  # attempt, generation


class Submitted:
    """`environment` is that of the jobs, over the lab's own; `folder` the run's directory."""

    def __init__(self, project: Project, run: str, num_steps: int, environment: Mapping[str, str]) -> None:
        self.lab: Lab = project.lab
        self.num_steps = num_steps
        self.project, self.run, self.environment = project, run, dict(environment)
        self.folder = project.run_dir(run)
        self.jobs: list[str] = []
        self.finished = False
        self.later: list[tuple[float, Callable[[], None]]] = []  # what is to be mended, and when
        self._next_look = 0.0
        self.submit()

    def submit(self) -> None:
        """The next job; its number of a retry counts from 1."""
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.environment.items())
        command = [sys.executable, "-m", "trainpkg", "launch", "train", "--run", self.run]
        command += ["--retry", str(len(self.jobs) + 1), "--requeue", "--out", str(self.folder / "train.json")]
        shape = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--mem=2000", "--time=60"]
        log = f"--output={self.project.path}/{self.run}.log"
        job = self.lab.sbatch(
            exports + shlex.join(command), *shape, "--requeue", "--open-mode=append", log, cwd=self.project.path
        )
        self.jobs.append(job)

    # --- time passes ---

    def tick(self) -> None:
        """Mend what is due, and submit the run again if its job has ended without a result."""
        now = time.monotonic()
        for due in [one for one in self.later if one[0] <= now]:
            self.later.remove(due)
            due[1]()
        if now >= self._next_look:
            if (state := self.state()) in ENDED and not self.finished:
                self._ended(state)
            self._next_look = time.monotonic() + LOOK_S

    def _ended(self, state: str) -> None:
        """Snakemake deletes the outputs of a job that failed; one that completed has them."""
        output = self.folder / "train.json"
        self.finished = state == "COMPLETED" and output.exists()
        if self.finished:
            return
        assert state != "COMPLETED", f"the job ended well, and {output} is not there: {self.words()}"
        self.refuse_if_given_up()
        output.unlink(missing_ok=True)
        self.submit()

    def refuse_if_given_up(self) -> None:
        """The launcher must not end a run that only met with accidents."""
        told = self.lab.job(self.jobs[-1])
        if told.get("ExitCode", "").startswith(("78:", "2:")):
            raise AssertionError(f"the launcher gave run {self.run} up:\n{self.words()}")

    def until(self, condition: Callable[[], object], what: str) -> bool:
        """Whether it came to be; False where the run finished first."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            if self.finished:
                return False
            if time.monotonic() > end:
                raise TimeoutError(f"waited {LIMIT_S:.0f} s in vain for {what} of {self.run}\n{self.words()}")
            self.tick()
            time.sleep(0.02)
        return True

    def finish(self) -> None:
        """Return when the run has its result and everything broken is mended."""
        self.until(lambda: self.finished, "the end")
        end = time.monotonic() + LIMIT_S
        while self.later:
            assert time.monotonic() < end, "something broken was not mended"
            self.tick()
            time.sleep(0.1)

    # --- what can be seen ---

    def state(self) -> str:
        return self.lab.job(self.jobs[-1])["JobState"]

    def hosts(self) -> list[str]:
        """Nodes of the newest life, in order."""
        attempts = history.attempts(self.folder / "launch")
        spec = history.read_json(self.folder / f"launch/{attempts[-1]}/spec.json") if attempts else {}
        return list(spec.get("hosts", []))

    def lives(self) -> list[Life]:
        """Every start of ranks so far, the one that is being prepared included."""
        found = [path for path in (self.folder / "launch").glob("*/*") if path.is_dir()]
        return sorted((int(path.parent.name), int(path.name)) for path in found)

    def log(self, life: Life | None = None, name: str = "rank-0") -> str:
        """What rank 0 of a life has said; of the newest one where none is named."""
        lives = [life] if life else self.lives()[-1:]
        for attempt, generation in lives:
            path = self.folder / f"launch/{attempt}/{generation}/{name}.log"
            return path.read_text(errors="replace") if path.exists() else ""
        return ""

    @property
    def moment(self) -> str:
        """What the run is at: start, step N, evaluation after step N, save of step N, end (all is saved)."""
        log = self.log()
        steps = re.findall(r"^chaos: step (\d+)$", log, re.MULTILINE)
        if history.saved_step(self.folder) == self.num_steps:
            return "end"
        if not steps:
            return "start"
        if log.count("chaos: evaluation\n") > log.count("chaos: evaluated\n"):
            return f"evaluation {steps[-1]}"
        if saving := [path.name for path in (self.folder / "checkpoints").glob(".tmp-step-*")]:
            return f"save {int(saving[-1].split('-')[2])}"
        return f"step {steps[-1]}"

    def in_vain(self) -> int:
        """How many attempts in a row, this one included, have saved nothing yet."""
        return len(history.in_vain(self.folder / "launch", history.saved_step(self.folder)))

    def ranks(self) -> list[tuple[int, str, int]]:
        """(rank, node, process on the machine) of the living ranks of the newest life."""
        found = []
        lives, hosts = self.lives(), self.hosts()
        for index, host in enumerate(hosts):
            said = re.findall(r"rank (\d+) is process (\d+)", self.log(name=f"node-{index}")) if lives else []
            pids = self.processes(host)
            found += [(int(rank), host, pids[int(pid)][0]) for rank, pid in said if int(pid) in pids]
        return found

    def processes(self, host: str) -> dict[int, tuple[int, str]]:
        """pid as the node counts -> (pid on the machine, command line)."""
        if host not in self.lab.realms:
            return {}
        return {inside: (outside, line) for outside, inside, line in self.lab.realms[host].processes()}

    def helpers(self) -> list[tuple[int, str, int]]:
        """(rank, node, process on the machine) of the ranks' forks: loader workers."""
        return [
            (rank, host, child)
            for rank, host, pid in self.ranks()
            for child in children(pid)
            if command_line(child) == command_line(pid)
        ]

    def programs(self, *words: str) -> list[tuple[str, int]]:
        """(node, pid on the machine) of the programs whose command line begins with these words, forks left out."""
        found = []
        for host in self.hosts():
            matching = {pid for pid, line in self.processes(host).values() if line.startswith(" ".join(words))}
            forked = {child for pid in matching for child in children(pid)}
            found += [(host, pid) for pid in sorted(matching - forked)]
        return found

    def words(self) -> str:
        """For the report of a failure."""
        path: Path = self.project.path / f"{self.run}.log"
        text = path.read_text(errors="replace")[-6000:] if path.exists() else ""
        return f"{text}\n--- rank 0\n{self.log()[-1500:]}\n{self.lab.logs(15)}"
