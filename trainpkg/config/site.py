"""What the keys of a site's surroundings may say: launch.env, .env_prepend, .prologue, .wrapper, .python, .srun_args.

A value that would contradict the launcher, do nothing, or leak is refused when the config is read, with what to say
instead. What the keys do is the launcher's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from trainpkg import variables
from trainpkg.config.execution import Launch
from trainpkg.config.keys import once_per_object

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$(\w+|\{)|\$\(|`")

_THE_LAUNCHERS = {
    "MASTER_ADDR": "launch.master_addr",
    "MASTER_PORT": "launch.port",
    "CUDA_VISIBLE_DEVICES": "launch.devices",
    "PYTHONPATH": "launch.env_prepend, which leaves the launcher's own part in it",
}
_OF_RANKS = frozenset(["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "NUM_NODES"])

# options of srun that decide who runs where, or where its words go -> why they are ours, or what to say instead
_REFUSED = {
    **dict.fromkeys(
        ["nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-core", "ntasks-per-socket", "nodefile",
         "ntasks-per-gpu", "ntasks-per-tres", "relative", "distribution", "multi-prog", "het-group", "pack-group",
         "jobid", "no-allocate"],
        "the launcher starts one task per node, on the nodes of launch.nodes",
    ),
    **dict.fromkeys(
        ["gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-per-task", "tres-bind"],
        "one task per node sees all GPUs of its node and gives each rank its own",
    ),
    **dict.fromkeys(["cpus-per-task", "cpus-per-gpu"], "slurm.cpus_per_task says it"),
    **dict.fromkeys(["overlap", "job-name", "kill-on-bad-exit", "wait", "unbuffered"], "the launcher sets it"),
    **dict.fromkeys(["output", "error", "input", "pty"], "the launcher reads what the step says, and nobody types"),
    "gpus": "it is a total that Slurm splits unevenly over nodes; --gpus-per-node says it for each",
    "cpu-bind": "the ranks of a node share its CPUs; a bound task would put all of them on few",
    "nodelist": "slurm.nodelist chooses nodes of the job",
    "exclude": "slurm.exclude chooses nodes of the job",
    "mpi": "launch.backend: mpi and launch.mpi choose it for the ranks",
    "export": "it can drop what the launcher hands on; launch.env sets variables",
    "bcast": "node processes run from the shared file system",
}  # fmt: skip
# of these, what a task per rank may well be given, where each rank is one: it goes to their step alone
_OF_TASKS = frozenset({"gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-per-task", "tres-bind", "cpu-bind"})
_SHORT = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "w": "nodelist", "x": "exclude", "W": "wait", "u": "unbuffered",
    "J": "job-name", "K": "kill-on-bad-exit", "G": "gpus", "o": "output", "e": "error", "i": "input", "r": "relative",
    "m": "distribution", "Z": "no-allocate", "F": "nodefile",
}  # fmt: skip
_FLAGS = "lqsvEHIOQXkV"  # short options without a value, after which others may follow in one word

_EXPORT = "export it in launch.prologue, or in the environment from which jobs are submitted"


@once_per_object
def disagreements(launch: Launch) -> list[str]:
    """Sentences on what these keys must not say."""
    return [*_env(launch), *_env_prepend(launch), *_start(launch), *_srun_args(launch), *_backend(launch)]


def _env(launch: Launch) -> Iterator[str]:
    for name, value in launch.env.items():
        key = f"launch.env.{name}"
        if problem := _no_name(name):
            yield f"{key} = {value!r}: {problem}"
        elif variables.is_secret(name):
            yield f"{key}: a secret must not stand in a config that is copied into the results; {_EXPORT}"
        elif name.startswith(variables.LIBRARY_PREFIXES) and (why := variables.remark(name)):
            yield f"{key} = {value!r}: {name} {why}. If a plugin of yours does read it, {_EXPORT}"
        elif _REFERENCE.search(value):
            yield (
                f"{key} = {value!r}: values are taken as they stand, `$` means nothing in them. launch.env_prepend "
                "puts something in front of a list as PATH has it; for more, export it in launch.prologue"
            )
        elif name == "OMP_NUM_THREADS" and not (value.isascii() and value.isdigit() and int(value) > 0):
            yield f"{key} = {value!r} is no number of threads"
    asked = launch.env.get("NCCL_IB_DISABLE")
    wanted = {"ethernet": "1", "infiniband": "0"}.get(launch.preset)
    if wanted is not None and asked not in (None, wanted):
        yield f"launch.env.NCCL_IB_DISABLE = {asked!r} contradicts launch.preset = {launch.preset!r}: that is {wanted}"


def _env_prepend(launch: Launch) -> Iterator[str]:
    for name, value in launch.env_prepend.items():
        key = f"launch.env_prepend.{name} = {value!r}"
        if name != "PYTHONPATH" and (problem := _no_name(name)):
            yield f"{key}: {problem}"
        elif variables.is_secret(name):
            yield f"launch.env_prepend.{name}: a secret must not stand in a config that is copied into the results"
        elif name.startswith(variables.LIBRARY_PREFIXES):
            yield f"{key}: {name} holds no list of folders; launch.env sets it"
        elif _REFERENCE.search(value):
            yield f"{key}: values are taken as they stand, and what the node has follows by itself"
        elif not all(value.split(":")):
            yield f"{key} has an empty part, which programs take for the current folder"


def _no_name(name: str) -> str:
    """Why this variable is not the user's to set."""
    if not _NAME.fullmatch(name):
        return "names have letters, digits and _, and do not begin with a digit"
    if name in _THE_LAUNCHERS:
        return f"the launcher sets {name}; say {_THE_LAUNCHERS[name]}"
    if name in _OF_RANKS or name.startswith("TRAINPKG_"):
        return f"the launcher sets {name} for each rank"
    if name.startswith(("SLURM_", "SRUN_", "SBATCH_")):
        return f"{name} is Slurm's to set; section slurm says what to ask for, launch.srun_args how steps start"
    return ""


def _start(launch: Launch) -> Iterator[str]:
    for number, line in enumerate(launch.prologue, start=1):
        if not line.strip():
            yield f"launch.prologue: line {number} is empty"
        elif re.match(r"\s*exec\s+[^\s<>&0-9]", line):
            yield f"launch.prologue, line {number}: {line!r} replaces the shell, and no launcher would start after it"
    for name in ("wrapper", "python"):
        text = getattr(launch, name)
        if text is None:
            continue
        if not text.strip() or "\n" in text:
            yield f"launch.{name} = {text!r}: one command on one line is needed; left out, there is none"
        elif name == "wrapper" and (why := _not_split(text)):
            yield f"launch.wrapper = {text!r}: {why}"
        elif name == "wrapper" and re.search(r"[;|&<>]", re.sub(r"'[^']*'|\"[^\"]*\"|\\.", "", text)):
            yield (
                f"launch.wrapper = {text!r}: the node's launcher is put behind it, so it is one command without "
                "`;`, `|`, `&` and redirections; launch.prologue runs others before"
            )


def _not_split(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        return str(error)
    return ""


def _srun_args(launch: Launch) -> Iterator[str]:
    key, text = "launch.srun_args", launch.srun_args
    if text and launch.where == "local":
        yield f"{key} = {text!r} has no effect with launch.where = 'local'"
    if why := _not_split(text):
        yield f"{key} = {text!r}: {why}"
        return
    before = "word"
    for word in shlex.split(text):
        if word.startswith("-") and len(word) > 1 and word != "--":
            before = "option" if "=" not in word else "word"
            for option in _options(word):
                if option in _OF_TASKS and _ranks_are_tasks(launch):
                    continue
                if option in _REFUSED:
                    yield f"{key}: `{word}` contradicts the launcher: {_REFUSED[option]}"
        elif before == "option":
            before = "word"  # the option's value
        else:
            yield f"{key} = {text!r}: `{word}` belongs to no option; srun would take it for the program to run"


def _ranks_are_tasks(launch: Launch) -> bool:
    """Whether Slurm itself may grant each rank its GPUs."""
    return launch.backend in ("srun", "mpi") and launch.mpi != "mpirun" and launch.devices is None


def _backend(launch: Launch) -> Iterator[str]:
    if launch.mpi != "auto" and launch.backend != "mpi":
        yield f"launch.mpi = {launch.mpi!r} has no effect with launch.backend = {launch.backend!r}"
    if launch.where == "local" and launch.backend == "srun":
        yield "launch.backend = 'srun' starts ranks as tasks of a Slurm job, which launch.where = 'local' rules out"
    if launch.where == "local" and launch.mpi in ("pmix", "pmi2"):
        yield f"launch.mpi = {launch.mpi!r} is a way of srun's, which launch.where = 'local' rules out; say mpirun"


def srun_args_of_nodes(text: str) -> list[str]:
    """The words of `launch.srun_args` for a step of one task per node: without what is said of the ranks' tasks."""
    kept: list[str] = []
    keep = True
    for word in shlex.split(text):
        if word.startswith("-"):
            keep = not _OF_TASKS.intersection(_options(word))
        if keep:
            kept.append(word)
    return kept


def _options(word: str) -> list[str]:
    """The refused options that a word of srun's command line stands for; srun also takes unique beginnings of names."""
    if word.startswith("--"):
        name = word[2:].partition("=")[0]
        return [name] if name in _REFUSED else [option for option in _REFUSED if option.startswith(name)][:1]
    found: list[str] = []
    for letter in word[1:]:
        if letter in _SHORT:
            return [*found, _SHORT[letter]]
        if letter not in _FLAGS:
            break
    return found
