"""Which calls of a script start training, with which launcher and what that launcher was told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainpkg.launch.doctor.script.parts import Call
from trainpkg.launch.doctor.script.reading import Script

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
# these start steps, or reach the other nodes, by themselves
MANAGERS = frozenset({"snakemake", "trainpkg", "nextflow", "submitit", "ray", "dask", "parsl", "dmlcloud", "wandb"})
_TORCHRUN_FLAGS = {"standalone", "no_python", "run_path", "use_env", "virtual_local_rank"}
_ACCELERATE_FLAGS = {
    "multi_gpu", "cpu", "tpu", "mps", "use_deepspeed", "use_fsdp", "use_megatron_lm", "debug", "quiet", "no_python",
    "same_network", "use_xpu", "enable_cpu_affinity", "use_parallelism_config", "dynamo_use_dynamic",
    "dynamo_use_fullgraph", "downcast_bf16", "no_tpu_cluster", "tpu_use_cluster", "tpu_use_sudo",
}  # fmt: skip
_HELPERS = frozenset([
    "echo", "printf", "cat", "which", "type", "command", "pip", "pip3", "uv", "git", "mkdir", "cp", "mv",
    "rm", "ls", "module", "export", "cd", "test", "grep", "sed", "awk", "tee", "tail", "head", "hash",
])  # fmt: skip
_PYTHON = re.compile(r"python[\d.]*|pypy\d*|ipython")


@dataclass(frozen=True)
class Launcher:
    """`kind`: torchrun, accelerate, deepspeed, other (a launcher of another kind), python. Names have `_` for `-`."""

    kind: str
    call: Call
    options: dict[str, str]
    program: str  # what it runs: a script or module

    @property
    def line(self) -> int:
        return self.call.line

    def option(self, *names: str) -> str | None:
        return next((self.options[name] for name in names if name in self.options), None)

    @property
    def several_nodes(self) -> bool:
        """Whether it runs on several nodes at once."""
        step = self.call.step
        return step is not None and self.call.place == "step" and (step.nodes or 1) > 1 and step.num_tasks != 1


def launchers(script: Script, *kinds: str) -> Iterator[Launcher]:
    """All calls that train, not counting those inside `$(...)`."""
    for call in script.calls:
        if not call.captured and (found := launcher_of(call)) is not None and found.kind in (kinds or (found.kind,)):
            yield found


def launcher_of(call: Call) -> Launcher | None:
    """The launcher or Python of a call; None where it runs something else."""
    words = call.words
    if call.program in _HELPERS or any(word.rsplit("/", 1)[-1] in ("bash", "sh") for word in words[:1]):
        return None
    for index, word in enumerate(words):
        name, rest = word.rsplit("/", 1)[-1], words[index + 1 :]
        if name == "torchrun":
            return _read("torchrun", call, rest, _TORCHRUN_FLAGS)
        if name == "accelerate" and rest[:1] == ("launch",):
            return _read("accelerate", call, rest[1:], _ACCELERATE_FLAGS)
        if name in ("deepspeed", "colossalai", "horovodrun", "torchx", "composer"):
            return _read("deepspeed" if name == "deepspeed" else "other", call, rest, set())
        if _PYTHON.fullmatch(name):
            return _python(call, rest)
        if name in MANAGERS:
            return None
    return None


def _python(call: Call, rest: tuple[str, ...]) -> Launcher | None:
    at = 0
    while at < len(rest) and rest[at].startswith("-") and rest[at] not in ("-m", "-c", "-"):
        at += 2 if rest[at] in ("-W", "-X") else 1
    if at >= len(rest) or rest[at] in ("-c", "-"):
        return None
    if rest[at] != "-m":
        return Launcher("python", call, {}, rest[at])
    module = rest[at + 1] if at + 1 < len(rest) else ""
    kind = MODULES.get(module)
    if kind is not None:
        flags = _TORCHRUN_FLAGS if kind == "torchrun" else _ACCELERATE_FLAGS
        return _read(kind, call, rest[at + 2 :], flags)
    top = module.split(".")[0]
    return None if top in MANAGERS | {"pip", "venv", "http", "json"} else Launcher("python", call, {}, module)


def _read(kind: str, call: Call, words: tuple[str, ...], flags: set[str]) -> Launcher:
    """The launcher's own options, which end where the script begins."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            break
        at += 1
        if word in ("-m", "--module"):
            break
        name, sign, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not sign and name not in flags and at < len(words) and not words[at].startswith("-"):
            value = words[at]
            at += 1
        found[name] = value
    return Launcher(kind, call, found, words[at] if at < len(words) else "")


def manages(call: Call) -> bool:
    """Whether the call starts a program that drives the other nodes itself."""
    for index, word in enumerate(call.words):
        name = word.rsplit("/", 1)[-1]
        if name in MANAGERS:
            return True
        if name == "-m" and call.words[index + 1 : index + 2]:
            return call.words[index + 1].split(".")[0] in MANAGERS
    return False
