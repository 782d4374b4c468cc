"""Rules on who is started where: steps that are missing, doubled, nested, not waited for, or that die unheard."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainpkg.launch.doctor.rows import WARN
from trainpkg.launch.doctor.script.findings import Found, Rule
from trainpkg.launch.doctor.script.launchers import Launcher, launcher_of, launchers, manages
from trainpkg.launch.doctor.script.parts import Step
from trainpkg.launch.doctor.script.reading import MPI, Script
from trainpkg.launch.doctor.script.variables import OF_A_TASK

_TRIVIAL = frozenset([
    "echo", "date", "printf", "exit", "return", "true", "cd", "export", "set", "unset", "rm", "cp", "mv",
    "ls", "cat", "touch", "squeue", "sacct", "scontrol", "hostname", "module", "source", ".", "deactivate",
    "conda", "kill", "trap",
])  # fmt: skip
_RANK_NAMES = re.compile(r"(GLOBAL_|GROUP_|NODE_|MACHINE_|LOCAL_)?RANK|NODE_?ID")


def training_steps(script: Script) -> list[tuple[Step, Launcher]]:
    """The steps that train, each with the first launcher in it."""
    found = []
    for step in script.steps:
        inside = [launcher for call in step.calls if (launcher := launcher_of(call)) is not None]
        if inside and not step.captured:
            found.append((step, inside[0]))
    return found


def _reaches_other_nodes(script: Script) -> bool:
    """Whether the script starts anything on other nodes, in whatever way."""
    if any(not step.captured for step in script.steps) or any(manages(call) for call in script.calls):
        return True
    return any(call.place in ("mpi", "remote") for call in script.calls)


def srun_missing(script: Script) -> Iterator[Found]:
    asked = script.request
    if not asked.several_nodes or _reaches_other_nodes(script) or script.trouble:
        return
    for launcher in launchers(script):
        name = launcher.program.rsplit("/", 1)[-1]
        by_itself = launcher.kind in ("deepspeed", "other") or {"deepspeed_hostfile", "hostfile"} & set(
            launcher.options
        )
        if by_itself or re.search(r"slurm|submit|launch|srun|ray|sweep|cluster", name):
            continue
        what = "python" if launcher.kind == "python" else launcher.kind
        why = f"a batch script runs on the first node only: {what} starts there alone, {_others(script)} stay idle"
        if launcher.kind != "python":
            why = f"a batch script runs on the first node only: {what} waits there for {_others(script)} in vain"
        yield Found(
            launcher.line, why, "Put `srun --ntasks-per-node=1` (one task per GPU for plain python) in front of it."
        )
        return


def _others(script: Script) -> str:
    number = (script.request.nodes or 2) - 1
    return f"{number} node{'s' * (number > 1)}"


def launcher_per_task(script: Script) -> Iterator[Found]:
    for launcher in launchers(script, "torchrun", "accelerate", "deepspeed", "other"):
        step = launcher.call.step
        if step is None or launcher.call.place != "step" or (step.tasks_per_node or 1) < 2:
            continue
        processes = launcher.option("nproc_per_node", "num_processes", "num_gpus")
        if processes is None and launcher.kind == "torchrun":
            continue
        if processes is None or script.number(processes) != 1:
            why = (
                f"srun starts {step.tasks_per_node} tasks per node, and each starts a {launcher.kind} with all of the "
                "node's processes: they collide at the port (Address already in use)"
            )
            fix = "Start it once per node: srun --ntasks-per-node=1 (or run the script itself, one task per GPU)."
            yield Found(launcher.line, why, fix)


def cpus_lost(script: Script) -> Iterator[Found]:
    cpus = script.request.number("cpus-per-task")
    if cpus is None or cpus < 2 or any(a.name == "SRUN_CPUS_PER_TASK" for a in script.assignments):
        return
    for step, _ in training_steps(script):
        loose = (step.value("cpu-bind") or "").endswith("none")
        if not step.given("cpus-per-task", "exclusive", "cpus-per-gpu") and not loose:
            why = f"since Slurm 22.05 srun does not inherit --cpus-per-task={cpus}: each task may be bound to one CPU"
            fix = "Give it to srun too (srun --cpus-per-task=$SLURM_CPUS_PER_TASK), or export SRUN_CPUS_PER_TASK."
            yield Found(step.line, why, fix, WARN)


def step_in_step(script: Script) -> Iterator[Found]:
    for step in script.steps:
        if step.outer is not None and not step.given("overlap"):
            why = "srun inside a step waits for ever for the CPUs that the outer step holds (Requested nodes are busy)"
            yield Found(step.line, why, "Add --overlap to the inner srun, or start it from the batch script.")


def not_waited_for(script: Script) -> Iterator[Found]:
    """A background step at the end: the batch script ends, and the job with it."""
    commands = [command for command in script.commands if command.words]
    last = None
    for index, command in enumerate(commands):
        if command.after == "&" and any(step.command is command for step in script.steps):
            last = index
    if last is None or any(command.program == "wait" for command in commands):
        return
    behind = [command.program for command in commands[last + 1 :]]
    if all(program in _TRIVIAL for program in behind) and "function" not in commands[last].around:
        why = "the script ends while this step runs in the background, and Slurm ends the job's steps with it"
        yield Found(commands[last].line, why, "Add `wait` at the end (and look at its status).")


def lives_on(script: Script) -> Iterator[Found]:
    if any(a.name == "SLURM_KILL_BAD_EXIT" for a in script.assignments):
        return
    for step, _ in training_steps(script):
        tasks = step.num_tasks
        many = tasks > 1 if tasks is not None else script.request.several_nodes
        if many and not step.given("kill-on-bad-exit"):
            why = "when one task dies the others wait for it until the time limit: srun does not end them by itself"
            yield Found(step.line, why, "Add --kill-on-bad-exit=1 to srun.", WARN)


def status_lost(script: Script) -> Iterator[Found]:
    """The job must fail when training does."""
    text = script.raw
    strict = re.search(r"^#!.*\s-\w*e|^\s*set\s+(-\w+\s+)*-\w*e|errexit", text, re.MULTILINE)
    piped = re.search(r"pipefail|PIPESTATUS", text)
    looked_at = any(read.name == "?" for read in script.reads) or script.trouble
    trained = [step.command for step, _ in training_steps(script)]
    if not trained:
        trained = [launcher.call.command for launcher in launchers(script) if launcher.call.place == "batch"]
    for command in trained:
        if command.conditional or command.after in ("&", "&&", "||") or command not in script.commands:
            continue
        if command.after in ("|", "|&") and not piped:
            why = "the status of a pipe is that of its last program: the job ends COMPLETED though training failed"
            yield Found(command.line, why, "Add `set -o pipefail` (and `set -e`) at the top.", WARN)
            return
        if strict or looked_at:
            continue
        behind = [later for later in script.commands[script.commands.index(command) + 1 :]
                  if later.words and later.before not in ("|", "|&")]  # fmt: skip
        if behind and behind[0].program not in ("exit", "fi", "wait") and not {"function", "for"} & set(command.around):
            why = f"whatever becomes of this, the script goes on (line {behind[0].line}) and ends with another status"
            yield Found(
                command.line, why, "Add `set -e` at the top, or keep the status: `status=$?; ...; exit $status`.", WARN
            )
            return


def expanded_too_early(script: Script) -> Iterator[Found]:
    """SLURM_NODEID and its kin have a value in the batch shell too: 0."""
    several = script.request.several_nodes or (script.request.number("ntasks") or 1) > 1
    commands = {id(step.command): step for step in script.steps if not step.captured}
    for read in script.reads:
        step = commands.get(id(read.command))
        if read.name not in OF_A_TASK or read.place != "batch" or step is None or _finds_ranks(step):
            continue
        if step.num_tasks != 1 and (several or (step.num_tasks or 1) > 1):
            why = f"the batch shell expands ${read.name} before srun starts: it is 0 in every task"
            fix = f"Let the task's shell expand it: srun bash -c '... ${read.name} ...' (in single quotes)."
            yield Found(read.line, why, fix)
    for assignment in script.assignments:
        if assignment.place != "batch" or not several or not training_steps(script):
            continue
        name = next((n for n in OF_A_TASK if re.search(rf"\$\{{?{n}\b", assignment.word.text)), None)
        if name and assignment.exported and _RANK_NAMES.fullmatch(assignment.name):
            why = f"in the batch shell ${name} is 0: every task inherits {assignment.name}=0"
            yield Found(
                assignment.line, why, f"Set it inside the step: srun bash -c 'export {assignment.name}=${name}; ...'."
            )


def _finds_ranks(step: Step) -> bool:
    """torchrun's c10d rendezvous takes no notice of --node-rank."""
    inside = [found for call in step.calls if (found := launcher_of(call)) is not None]
    return any((found.option("rdzv_backend") or "").startswith("c10d") for found in inside)


def hidden_devices(script: Script) -> Iterator[Found]:
    """--gpus-per-task=1 shows each task one GPU, called 0."""
    for step, launcher in training_steps(script):
        value = step.value("gpus-per-task") or script.request.options.get("gpus-per-task") or ""
        bound = step.value("gpu-bind") or script.request.options.get("gpu-bind") or ""
        if not re.fullmatch(r"(\w+:)?1", value) and not re.fullmatch(r"(verbose,)?(single:1|per_task:1)", bound):
            continue
        if (step.tasks_per_node or 2) < 2 or not re.search(
            r"--local[-_]rank[= ]\$\{?SLURM_LOCALID", launcher.call.text
        ):
            continue
        asked = f"--gpus-per-task={value}" if value else f"--gpu-bind={bound}"
        why = (
            f"{asked} shows each task one GPU, which it calls 0: its local rank as device number is an invalid ordinal"
        )
        yield Found(launcher.line, why, f"Drop {asked}, or let the program use device 0 where it sees one.", WARN)


def mpi_and_srun(script: Script) -> Iterator[Found]:
    for read in script.reads:
        if read.place == "mpi" and read.name in OF_A_TASK and read.command.program not in MPI:
            why = f"mpirun sets no {read.name} per process: all of them get the batch shell's"
            names = "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_LOCAL_RANK, or PMI_RANK"
            yield Found(read.line, why, f"Read mpirun's own variables ({names}), or start with srun.")
            return
    for step in script.steps:
        first = next((call for call in step.calls if call.program in MPI), None)
        if first is not None and (step.num_tasks or 1) > 1:
            why = f"srun starts {step.num_tasks} tasks, and each starts an {first.program} of its own for all processes"
            yield Found(step.line, why, "Call mpirun from the batch script, or srun --mpi=pmix without mpirun.")


def driver_per_task(script: Script) -> Iterator[Found]:
    for step in script.steps:
        for call in step.calls:
            name = next(
                (n for n in ("snakemake", "nextflow", "trainpkg") if n in (call.program, *_module(call.words))), ""
            )
            drives = name and (name != "trainpkg" or "launch" in call.words)
            if drives and (step.num_tasks or 1) > 1:
                why = (
                    f"srun starts {step.num_tasks} times {name}, which is meant to run once and starts the rest itself"
                )
                yield Found(step.line, why, f"Run {name} in the batch script, without srun.")


def _module(words: tuple[str, ...]) -> tuple[str, ...]:
    at = words.index("-m") if "-m" in words else len(words)
    return words[at + 1 : at + 2]


RULES = (
    Rule("srun-missing", srun_missing, "one process on the first node"),
    Rule("launcher-per-task", launcher_per_task, "a per-node launcher started once per task"),
    Rule("cpus-lost", cpus_lost, "--cpus-per-task that srun does not inherit"),
    Rule("step-in-step", step_in_step, "srun inside srun"),
    Rule("not-waited-for", not_waited_for, "background steps without wait"),
    Rule("lives-on", lives_on, "tasks that outlive a dead one"),
    Rule("status-lost", status_lost, "a job that ends COMPLETED though training failed"),
    Rule("expanded-too-early", expanded_too_early, "a task's variable expanded by the batch shell"),
    Rule("hidden-devices", hidden_devices, "local rank as device number where each task sees one GPU"),
    Rule("mpi-and-srun", mpi_and_srun, "mpirun and srun mixed"),
    Rule("driver-per-task", driver_per_task, "a program that is meant to run once, once per task"),
)
