"""Where node processes run: one per node of a Slurm job through srun, or several on this machine as simulated nodes.

Command lines and environments are values; two small classes start them and tell what became of them. The step in
which the ranks themselves are tasks (backends srun and mpi) is rank_steps.py's.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import trainpkg
from trainpkg.config import site
from trainpkg.errors import UserError
from trainpkg.launch import network, processes
from trainpkg.launch.head.blame.sentences import signal_name
from trainpkg.launch.head.blame.step_words import End
from trainpkg.launch.head.steps.command import NODE_RANK
from trainpkg.launch.head.steps.step import Step
from trainpkg.launch.node.evidence import last_lines
from trainpkg.launch.slurm import het
from trainpkg.launch.slurm.allocation import Allocation
from trainpkg.launch.slurm.grammar import expand_hosts, parse_gres
from trainpkg.launch.spec import Spec

# srun is told its geometry and looks the rest up: what batch and outer steps left in the environment contradicts it
KEPT_SLURM = frozenset({"SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_JWT"})
TELLING = re.compile(r"error|No module named")


class Nodes(Protocol):
    """The started node processes."""

    @property
    def refused(self) -> Mapping[str, str]:
        """Hosts that let no process be started, and what was said of it."""

    def ended(self) -> str:
        """Why no further node will answer the roll call, or nothing."""

    def node_end(self, index: int) -> End:
        """The signal that ended a node's process, where it is known, and what was said of that end."""

    def end(self, grace_s: float) -> None:
        """Wait so long for all to end by themselves, then end them."""


def importable(env: Mapping[str, str]) -> dict[str, str]:
    """The environment, and this package importable in it."""
    root = str(Path(trainpkg.__file__).parent.parent)
    path = env.get("PYTHONPATH", "")
    if Path(root).name not in ("site-packages", "dist-packages"):
        path = os.pathsep.join([root, path] if path else [root])
    return dict(env) | ({"PYTHONPATH": path} if path else {})


def node_environment(env: Mapping[str, str], secret: str) -> dict[str, str]:
    """The environment of node processes: this package importable, the secret in it and on no command line."""
    return importable(env) | {"TRAINPKG_SECRET": secret}


def srun_command(spec: Spec, job_hosts: list[str]) -> list[str]:
    """`srun` with one task per node and the geometry spelled out; nothing of it is inherited since Slurm 22.05.

    `--overlap`: another step of this job (the one that we may be in, the ranks' own) holds CPUs, memory and GPUs too,
    and without it the later one waits for ever.
    """
    num = spec.num_nodes
    one_job = [f"--nodes={num}", f"--ntasks={num}", "--ntasks-per-node=1"]
    command = ["srun", *(het.geometry(spec.parts) if spec.het else one_job)]
    command += [f"--cpus-per-task={spec.cpus_per_task}", "--cpu-bind=none", "--kill-on-bad-exit=1", "--wait=60"]
    command += ["--overlap"] if spec.overlap else []
    command += ["--mpi=none", "--unbuffered", f"--job-name={spec.stage}-{spec.run}"]
    own = site.srun_args_of_nodes(spec.srun_args)
    if spec.step_gpus and not any(word.startswith(("--gres", "--gpus")) for word in own):
        command.append(f"--gres=gpu:{spec.step_gpus}")
    if job_hosts and job_hosts != spec.hosts and not spec.het:
        command.append(f"--nodelist={','.join(spec.hosts)}")
    return command + own  # what would contradict ours has been refused with the config


def srun_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what Slurm put there for another step."""
    foreign = re.compile(r"(SLURM|SRUN|SBATCH|SALLOC)_")
    return {name: value for name, value in env.items() if not foreign.match(name) or name in KEPT_SLURM}


def gpus_of_exclusive_job(fields: Mapping[str, str], hosts: list[str]) -> int:
    """GPUs per node that srun must ask for to get any: all, where the job has whole nodes and named no GPUs.

    Seen with Slurm 22.05: `--exclusive` without GPUs gives a step none, though no other job may have them; a step that
    asks gets them. Jobs that named GPUs hand them on to their steps.
    """
    named = any(name.startswith("Tres") and "gpu" in value for name, value in fields.items())
    if named or fields.get("OverSubscribe") != "NO":
        return 0
    command = ["scontrol", "show", "node", ",".join(hosts), "--oneliner"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    shown = re.findall(r"(?:^|\s)Gres=(\S+)", asked.stdout)
    counts = [sum(g.count for g in parse_gres(text) if g.name == "gpu") for text in shown if text != "(null)"]
    return min(counts) if len(counts) == len(hosts) else 0


def hosts_of_job(allocation: Allocation, fields: Mapping[str, str], num_nodes: int | None) -> list[str]:
    """The first `num_nodes` hosts of the job (None: all), in Slurm's order. Raises UserError when it has fewer."""
    hosts = list(allocation.hosts) or expand_hosts(fields.get("NodeList", ""), "NodeList of `scontrol show job`")
    if num_nodes is not None and len(hosts) < num_nodes:
        raise UserError(
            f"launch.nodes = {num_nodes}, but Slurm job {allocation.job_id} has {len(hosts)} node(s): "
            f"{','.join(hosts)}. Ask Slurm for as many, set launch.nodes, or launch.where: local to simulate them here"
        )
    return hosts[:num_nodes]


def end_of_job(allocation: Allocation, fields: Mapping[str, str]) -> float | None:
    """When Slurm will end the job, in unix seconds; None when it has no limit."""
    if allocation.deadline is not None:
        return allocation.deadline
    return _unix_s(fields.get("EndTime", ""))


def limit_of_job(fields: Mapping[str, str]) -> float | None:
    """Seconds that Slurm gives the job, None where it has no limit."""
    start_s, end_s = _unix_s(fields.get("StartTime", "")), _unix_s(fields.get("EndTime", ""))
    return None if start_s is None or end_s is None else end_s - start_s


def _unix_s(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # Unknown, NONE
        return None


class SrunNodes(Step):
    """One srun step with a node process as its only task on each node. srun ends its tasks at once when it is ended."""

    def node_end(self, index: int) -> End:
        signum, words = self.task_ends.get(index, (None, ""))
        return signum, f"srun says: {words}" if words else ""


@dataclass
class LocalNodes:
    """Simulated nodes: one process each on this machine."""

    logs: list[Path]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(cls, spec: Spec, command: list[str], env: Mapping[str, str]) -> LocalNodes:
        """All nodes, or the first alone where the others are typed on their own machines."""
        folder = spec.generation_dir(0)
        folder.mkdir(parents=True, exist_ok=True)
        num_here = 1 if spec.where == "typed" else spec.num_nodes
        nodes = cls([folder / f"node-{index}.log" for index in range(num_here)])
        for index, log in enumerate(nodes.logs):
            with log.open("ab") as file:
                nodes.running.append(nodes.start_one(spec, index, command, env, file))
        return nodes

    @staticmethod
    def start_one(
        spec: Spec, index: int, command: list[str], env: Mapping[str, str], log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """One node. A session of its own: Ctrl-C reaches `launch` alone, which ends the rest in order."""
        own = dict(env) | share_of_gpus(spec, index, env) | {NODE_RANK: str(index)}
        own.pop("SLURM_NODEID", None)  # of a surrounding job
        return subprocess.Popen(
            [*command, f"--node-rank={index}"],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ended(self) -> str:
        for index, process in enumerate(self.running):
            code = process.poll()
            if code is not None:
                how = f"by {signal_name(-code)}" if code < 0 else f"with status {code}"
                said = next((line for line in reversed(last_lines(self.logs[index])) if TELLING.search(line)), "")
                return f"the launcher of node {index} ended {how}" + (f" ({said})" if said else "")
        return ""

    def node_end(self, index: int) -> End:
        code = self.running[index].poll() if index < len(self.running) else None
        return (-code, f"killed by {signal_name(-code)}") if code is not None and code < 0 else (None, "")

    def end(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        for process in self.running:
            while process.poll() is None:  # Popen.wait with a limit looks less and less often
                if time.monotonic() > deadline:
                    process.kill()
                time.sleep(0.002)
        processes.kill_descendants()


def share_of_gpus(spec: Spec, index: int, env: Mapping[str, str]) -> dict[str, str]:
    """Simulated nodes divide this machine's GPUs among them, as real ones have their own."""
    if spec.num_nodes == 1 or spec.device == "cpu" or spec.where == "typed":
        return {}
    gpus = network.visible_gpus(env)
    share = len(gpus) // spec.num_nodes
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * share : (index + 1) * share])} if gpus else {}
