"""The step whose tasks are the ranks, for the backends that leave starting them to Slurm or to mpirun.

Command lines and environments are values; `RankSteps` runs one step per generation. Each task is a guard, which asks
its node's launcher what to run and tells how that ended (see start/guard.py), so whatever the step's own program thinks
of an end is of no account: it must not end the others, and its status says nothing. Which MPI it is, is mpi.py's.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from trainpkg.launch import subnet
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.head.blame.generation import Generation
from trainpkg.launch.head.steps import command, places
from trainpkg.launch.head.steps.step import Step
from trainpkg.launch.plan import LaunchPlan, NodePlan
from trainpkg.launch.slurm.grammar import run_lengths
from trainpkg.launch.spec import Spec

# what another MPI launcher said to this process; a user's own settings (OMPI_MCA_...) are not among it
FOREIGN_MPI = re.compile(r"(PMI|PMIX|ORTE|HYDRA|MPI|MV2)_|(OMPI|PRTE)_(?!MCA_|ALLOW_)")
AS_ROOT = [f"{mpi}_ALLOW_RUN_AS_ROOT{more}" for mpi in ("OMPI", "PRTE") for more in ("", "_CONFIRM")]

LAST_WORDS_S = 2.0  # what tasks told before their step ended is still on its way
END_GRACE_S = 5.0


def guard_command(spec: Spec, generation: int) -> list[str]:
    """What runs as each task."""
    program = [spec.python or sys.executable, "-m", "trainpkg.launch.start.guard"]
    return command.on_node(spec, [*program, f"--spec={spec.launch_dir}/spec.json", f"--generation={generation}"])


def srun_command(spec: Spec, plan: LaunchPlan, job_hosts: Sequence[str]) -> list[str]:
    """`srun` with one task per rank, numbered as the plan numbers them.

    Nodes with unequal numbers of ranks, or in another order than Slurm's, are told task by task, in a file that
    SLURM_HOSTFILE names.
    """
    counts = [node.num_ranks for node in plan.nodes]
    words = ["srun", f"--ntasks={plan.world_size}"]
    if len(set(counts)) == 1 and in_rank_order(plan) == list(plan.nodes):
        words += [f"--nodes={plan.num_nodes}", f"--ntasks-per-node={counts[0]}", "--distribution=block"]
        if list(job_hosts) != spec.hosts:
            words.append(f"--nodelist={','.join(spec.hosts)}")
    else:
        words.append("--distribution=arbitrary")
    words += [f"--cpus-per-task={max(1, spec.cpus_per_task // max(counts))}", "--cpu-bind=none", "--mem=0"]
    if max(counts) > spec.cpus_per_task:
        words.append("--overcommit")
    own = shlex.split(spec.srun_args)
    if spec.step_gpus and not any(word.startswith(("--gres", "--gpus")) for word in own):
        words.append(f"--gres=gpu:{spec.step_gpus}")
    words += ["--overlap", f"--mpi={spec.mpi or 'none'}", "--kill-on-bad-exit=0", "--wait=0", "--label"]
    return [*words, "--unbuffered", f"--job-name={spec.stage}-{spec.run}-ranks", *own]


def host_file(plan: LaunchPlan) -> str:
    """One line per rank: the host it runs on."""
    return "".join(f"{node.host}\n" * node.num_ranks for node in in_rank_order(plan))


def in_rank_order(plan: LaunchPlan) -> list[NodePlan]:
    """The nodes as their ranks count: the first may be another than node 0 (launch.master_addr)."""
    return sorted(plan.nodes, key=lambda node: node.rank_offset)


def mpirun_command(spec: Spec, plan: LaunchPlan, within: str | None, env: Mapping[str, str]) -> list[str]:
    """`mpirun` with the plan's hosts and their numbers of ranks, in that order.

    `within`: the network in which mpirun and its daemons on other nodes find each other. A bridge of containers has the
    same address on every host, and they would try that one too.
    """
    hosts = [f"localhost:{plan.world_size}"]
    if spec.where == "slurm":
        hosts = [f"{node.host}:{node.num_ranks}" for node in in_rank_order(plan)]
    if spec.mpirun != "Open MPI":  # hydra's, of MPICH and its kin
        return ["mpirun", "-hosts", ",".join(hosts), "-n", str(plan.world_size), "-bind-to", "none", "-prepend-rank"]
    words = ["mpirun", "--host", ",".join(hosts), "-np", str(plan.world_size)]
    words += ["--map-by", "slot", "--bind-to", "none", "--tag-output"]
    for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"):  # a daemon that ssh starts has only what is named here
        words += ["-x", name] if name in env else []
    if within is not None:
        words += ["--mca", "oob_tcp_if_include", within, "--mca", "btl_tcp_if_include", within]
    return words


def mpirun_environment(spec: Spec, plan: LaunchPlan, env: Mapping[str, str], is_root: bool) -> dict[str, str]:
    """An environment in which mpirun finds the nodes and starts its daemons there through srun.

    Of a job it wants more than its number (without SLURM_NODELIST it aborts), and the srun that it calls must share the
    nodes with ours. It refuses root unless told otherwise; whoever started `launch` as root has decided that.
    """
    own = {name: value for name, value in env.items() if not FOREIGN_MPI.match(name)}
    if is_root:
        own |= dict.fromkeys(AS_ROOT, "1")
    if spec.where != "slurm":
        return places.srun_environment({k: v for k, v in own.items() if k not in places.KEPT_SLURM})
    hosts, num = ",".join(spec.hosts), str(spec.num_nodes)
    tasks = run_lengths([node.num_ranks for node in plan.nodes])
    job = {"SLURM_JOB_ID": spec.slurm_job_id or "", "SLURM_JOBID": spec.slurm_job_id or ""}
    job |= {"SLURM_NODELIST": hosts, "SLURM_JOB_NODELIST": hosts, "SLURM_NNODES": num, "SLURM_JOB_NUM_NODES": num}
    job |= {"SLURM_TASKS_PER_NODE": tasks, "SLURM_OVERLAP": "1", "SLURM_MPI_TYPE": "none", "SLURM_CPU_BIND": "none"}
    return places.srun_environment(own) | job


def common_subnet(plan: LaunchPlan, nodes: Sequence[NodeFacts]) -> str | None:
    """The network of the master's address, if every node has an address in it."""
    found = subnet.subnet_of(plan.master_addr)
    return found if found and all(subnet.any_within(node.addresses, found) for node in nodes) else None


class RankSteps:
    """The ranks' step of the generation that runs, where the backend has one. `say` shows a line."""

    def __init__(self, spec: Spec, job_hosts: Sequence[str], say: Callable[[str], None]) -> None:
        self.spec, self.job_hosts, self.say = spec, job_hosts, say
        self.step: Step | None = None
        self.ended_s: float | None = None
        self.any_came = False

    def start(self, plan: LaunchPlan, nodes: Sequence[NodeFacts]) -> None:
        """Start all ranks of a generation, on all nodes, unless the nodes do."""
        if not self.spec.ranks_are_tasks:
            return
        spec, env = self.spec, places.importable(os.environ)
        if spec.mpi == "mpirun":
            words = mpirun_command(spec, plan, common_subnet(plan, nodes), env)
            env = mpirun_environment(spec, plan, env, os.geteuid() == 0)
        else:
            words = srun_command(spec, plan, self.job_hosts)
            env = places.srun_environment({k: v for k, v in env.items() if not FOREIGN_MPI.match(k)})
            if "--distribution=arbitrary" in words:
                path = spec.generation_dir(plan.generation) / "hosts"
                path.write_text(host_file(plan))
                env["SLURM_HOSTFILE"] = str(path)
        self.say(f"starting {shlex.join(words)}")
        self.ended_s, self.any_came = None, False
        log = spec.generation_dir(plan.generation) / "ranks-step.log"
        self.step = Step([*words, *guard_command(spec, plan.generation)], env, self.say, log)

    def look(self, current: Generation, now_s: float) -> None:
        """Tell the generation which ranks will not come: their step is over, waits in vain, or takes too long."""
        missing = [number for number, rank in current.ranks.items() if not rank.started and rank.ended_s is None]
        self.any_came = self.any_came or len(missing) < len(current.ranks)
        if self.step is None or current.go_s is None or current.failed_s is not None or not missing:
            return
        limit = self.spec.timeouts.init_s
        if why := self.step.ended():
            self.ended_s = self.ended_s or now_s
            if now_s - self.ended_s > LAST_WORDS_S:
                current.never_started(missing, why, now_s)
        elif now_s - current.go_s > limit:
            text = f"its step has brought no task for it within {limit:g} s (launch.init_timeout_s)"
            current.never_started(missing, text, now_s)

    def end(self) -> None:
        """Wait for the step to end, which its tasks have done with their ranks, or end it. Blocks."""
        if self.step is not None:
            self.step.end(END_GRACE_S if self.any_came else 0.0)  # where none ever came it may wait for ever
            self.step = None
