"""Versions as the packages' own files say them, and search paths that bring in others. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from pathlib import Path

from trainpkg import variables
from trainpkg.launch import facts
from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, OK, WARN, Row

CARED_FOR = ("torch", "numpy", "trainpkg", "triton", "nvidia", "pydantic", "yaml", "safetensors", "snakemake")
LIBRARIES = re.compile(r"lib(cudart|nccl|cublas|cudnn)\.so\.(\d+)(?:\.(\d+))?")
OTHER_CUDA_FIX = (
    "Take that folder out of LD_LIBRARY_PATH (module unload cuda): torch's wheels bring their own CUDA and NCCL, which "
    "libraries of the same name found there can replace."
)


def python(machine: Machine, wanted: Wanted) -> Row:
    """The interpreter."""
    version = platform.python_version()
    return Row("Python", f"{version} at {sys.executable}", same=version, differing=BAD)


def torch(machine: Machine, wanted: Wanted) -> Row:
    """torch as its version.py and its metadata say; two that differ are two installations on one path."""
    folder = find_package(machine, "torch")
    said = metadata_version(machine, "torch")
    if folder is None:
        return Row("torch", "not installed", BAD, f"{sys.executable} -m pip install torch", "none", BAD)
    version, cuda = torch_version(folder)
    text = f"{version}, {'CUDA ' + cuda if cuda else 'without CUDA'}, at {folder.parent}"
    if said and version.split("+")[0] != said.split("+")[0]:
        fix = f"Two installations overlap: remove one (pip uninstall torch, until none is left; then look at {folder})."
        return Row("torch", f"{text}, but its metadata says {said}", BAD, fix, version, BAD)
    return Row("torch", text, same=f"{version} (CUDA {cuda or 'none'})", differing=BAD)


def nccl(machine: Machine, wanted: Wanted) -> Row:
    """NCCL as the wheel beside torch has it; nodes with different ones hang or say `message truncated`."""
    found = {name: version for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
             if (version := metadata_version(machine, name))}  # fmt: skip
    preload = machine.env.get("LD_PRELOAD", "")
    text = ", ".join(f"{version} ({name})" for name, version in found.items()) or "no wheel: torch's build decides"
    if "nccl" in preload:
        text += f", replaced by LD_PRELOAD={preload}"
    folder = find_package(machine, "torch")
    major = (torch_version(folder)[1] if folder else "").split(".")[0]
    extra = [name for name in found if major and not name.endswith(f"-cu{major}")]
    if len(found) > 1 and extra:
        fix = f"{sys.executable} -m pip uninstall {' '.join(extra)}: torch is built for CUDA {major}."
        return Row("NCCL", f"{text}: wheels of two CUDA versions share one folder", BAD, fix, text, BAD)
    return Row("NCCL", text, same=text, differing=BAD)


def code(machine: Machine, wanted: Wanted) -> Row:
    """The sources of this package."""
    found = facts.code_hash()
    return Row("trainpkg's code", found, same=found, differing=BAD)


def cuda_paths(machine: Machine, wanted: Wanted) -> Row:
    """CUDA_HOME and LD_LIBRARY_PATH against the CUDA that torch was built for."""
    folder = find_package(machine, "torch")
    cuda = torch_version(folder)[1] if folder else ""
    env = dict(machine.env) | dict(wanted.env)
    foreign: list[str] = []
    told: list[str] = []
    for entry in filter(None, env.get("LD_LIBRARY_PATH", "").split(":")):
        for name in machine.names_in(entry):
            match = LIBRARIES.match(name)
            if match is None:
                continue
            other = match[1] in ("nccl", "cudnn") or not cuda.startswith(f"{match[2]}.")
            (foreign if other else told).append(f"{entry}/{name}")
    home = env.get("CUDA_HOME") or env.get("CUDA_PATH") or ""
    version = toolkit_version(machine, home) if home else ""
    text = f"CUDA_HOME={home} ({version or 'version unknown'})" if home else "CUDA_HOME not set"
    if not cuda:
        return Row("CUDA paths", f"{text}; torch is built without CUDA")
    if foreign:
        more = f" and {len(foreign) - 2} more" if len(foreign) > 2 else ""
        shown = ", ".join(dict.fromkeys(foreign[:2])) + more
        return Row("CUDA paths", f"LD_LIBRARY_PATH brings {shown}; torch has CUDA {cuda}", WARN, OTHER_CUDA_FIX)
    if version and version.split(".")[0] != cuda.split(".")[0]:
        fix = (
            f"Let CUDA_HOME name a toolkit of CUDA {cuda.split('.')[0]}: extensions compiled on the fly take its nvcc."
        )
        return Row("CUDA paths", f"{text}; torch has CUDA {cuda}", WARN, fix)
    return Row("CUDA paths", text + (f"; {told[0]}, the same major version as torch's" if told else ""))


def search_path(machine: Machine, wanted: Wanted) -> Row:
    """Where imports come from: PYTHONPATH and ~/.local go before the environment's own packages."""
    problems = []
    if machine.env.get("PYTHONHOME"):
        problems.append(f"PYTHONHOME={machine.env['PYTHONHOME']} replaces the standard library")
    own = Path(facts.__file__).parents[2]
    for entry in filter(None, machine.env.get("PYTHONPATH", "").split(":")):
        shadowing = [name for name in CARED_FOR if machine.path(entry).joinpath(name, "__init__.py").exists()]
        shadowing = [name for name in shadowing if name != "trainpkg" or Path(entry).resolve() != own]
        if shadowing:
            problems.append(f"PYTHONPATH's {entry} brings its own {', '.join(shadowing)}")
    local = machine.path(
        _home(machine) + f"/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    )
    if not machine.env.get("PYTHONNOUSERSITE") and not machine.in_venv:
        shadowing = [name for name in CARED_FOR if (local / name / "__init__.py").exists()]
        if shadowing:
            problems.append(f"~/.local brings its own {', '.join(shadowing)}")
    fix = "Unset PYTHONPATH and PYTHONHOME, and set PYTHONNOUSERSITE=1 (launch.env takes both), or work in a venv."
    return Row("search path", "; ".join(problems) or "nothing goes before the environment's packages",
               WARN if problems else OK, fix)  # fmt: skip


def settings(machine: Machine, wanted: Wanted) -> list[Row]:
    """NCCL_*, TORCH_* and gloo's variables, to be compared between nodes; one row each."""
    env = dict(machine.env) | dict(wanted.env)
    names = sorted(name for name in env if re.match(r"(NCCL|TORCH|GLOO|UCX|PYTORCH|FI|OMP)_", name))[:60]
    rows = []
    for name in names:
        value = variables.shown(name, env[name], 200)
        remark = variables.remark(name)
        # these select something of one node, which may rightly be called otherwise there
        own = re.search(r"IFNAME|_HCA|GID_INDEX|TOPO|GRAPH_FILE|DEBUG|HOSTID|NET_DEVICES|_DIR|_FILE|OMP_NUM", name)
        steering = name.startswith("NCCL") and not own
        fix = "Correct the name." if remark else "Set it in launch.env, so that all nodes have one value."
        found, verdict = (f"{value}; this name {remark}", WARN) if remark else (value, OK)
        rows.append(Row(name, found, verdict, fix, None if own else value, BAD if steering else WARN))
    return rows


def find_package(machine: Machine, name: str) -> Path | None:
    """The folder from which the package would be imported."""
    folders = (Path(entry or ".") / name for entry in machine.sys_path)
    return next((folder for folder in folders if (folder / "__init__.py").exists()), None)


def torch_version(folder: Path) -> tuple[str, str]:
    """Version, and the CUDA that it was built for (empty: none), from torch/version.py."""
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        return "unknown", ""
    values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    return values.get("__version__", "unknown"), values.get("cuda", "")


def metadata_version(machine: Machine, name: str) -> str:
    """The version of an installed distribution, or nothing."""
    found = importlib.metadata.distributions(name=name, path=list(machine.sys_path))
    return next((str(distribution.version) for distribution in found), "")


def toolkit_version(machine: Machine, home: str) -> str:
    """The version of a CUDA toolkit, from its own file or from its folder's name."""
    match = re.search(r'"cuda"\s*:\s*{[^}]*"version"\s*:\s*"([\d.]+)"', machine.read(f"{home}/version.json"))
    match = match or re.search(r"CUDA Version ([\d.]+)", machine.read(f"{home}/version.txt"))
    match = match or re.search(r"cuda[-_/]?v?(\d+\.\d+)", home)
    return match[1] if match else ""


def _home(machine: Machine) -> str:
    return machine.env.get("HOME", "/nonexistent")
