"""Which way backend mpi starts its ranks here: what Slurm, mpirun and the MPI library of mpi4py say, and the choice.

A way that the library does not understand starts every rank as a world of its own, without an error; so what is known
beforehand to do that is refused here, and the rest by the guards (see start/mpi.py).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainpkg.config import Launch
from trainpkg.errors import UserError
from trainpkg.launch.start.mpi import LIBRARY_COMMAND, family

ASK_TIMEOUT_S = 30.0
PMIX_UNLOADABLE = re.compile(r"can ?not load PMIx|Unable to load any plugin|Invalid MPI type", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """What this machine has. `listed`: the types of `srun --mpi=list`; `unloadable`: type -> what srun says of it."""

    in_slurm: bool
    listed: tuple[str, ...] = ()
    unloadable: Mapping[str, str] | None = None
    mpirun: str = ""  # the first line of `mpirun --version`
    library: str = ""  # what MPI_Get_library_version says; empty where this Python has no mpi4py

    @property
    def said(self) -> str:
        """All of it, for a message."""
        listed = f"`srun --mpi=list` says {', '.join(self.listed) or 'nothing'}" if self.in_slurm else "no Slurm job"
        broken = [f"`srun --mpi={name}` says {why!r}" for name, why in (self.unloadable or {}).items()]
        mpirun = f"mpirun is {self.mpirun}" if self.mpirun else "there is no mpirun in PATH"
        library = f"mpi4py loads {self.library}" if self.library else "mpi4py or its MPI library is not here"
        return "; ".join([listed, *broken, mpirun, library])


def choose(wanted: str, found: Found) -> str:
    """pmix, pmi2 or mpirun for `launch.mpi`. Raises UserError where that cannot work, with what was found."""
    ways = [wanted]
    if wanted == "auto":
        by_slurm = ["pmi2"] if family(found.library) == "MPICH" else ["pmix"]
        ways = [*(by_slurm if found.in_slurm else []), "mpirun"]
    refused = {way: why for way in ways if (why := why_not(way, found))}
    for way in ways:
        if way not in refused:
            return way
    told = "; ".join(f"{way}: {why}" for way, why in refused.items())
    raise UserError(f"launch.mpi = {wanted!r} cannot start the ranks ({told}). Found: {found.said}")


def why_not(way: str, found: Found) -> str:
    """Why this way is closed, or nothing."""
    mine = family(found.library)
    if way == "mpirun":
        if not found.mpirun:
            return "there is no mpirun in PATH; install openmpi-bin or mpich, or load its module before submitting"
        if mine and mine != family(found.mpirun):
            return (
                f"mpirun is {family(found.mpirun)}'s and mpi4py loads {mine}: each rank would be rank 0 of 1. Put the "
                "mpirun of the same MPI first in PATH, or name the library in MPI4PY_LIBMPI"
            )
        return ""
    if not found.in_slurm:
        return f"srun --mpi={way} needs a Slurm job; outside of one mpirun starts the ranks"
    if way not in found.listed:
        return f"this Slurm has no plugin {way}"
    if said := (found.unloadable or {}).get(way):
        return f"Slurm has the plugin and cannot load it ({said}); on Debian libpmix-dev brings the library's name"
    if way == "pmi2" and re.search(r"Open MPI v([5-9]|\d\d)", found.library):  # older ones could be built with PMI
        return "Open MPI speaks PMIx alone since version 5: each rank would be rank 0 of 1; set launch.mpi: pmix"
    return ""


def spec_fields(launch: Launch, in_slurm: bool, env: Mapping[str, str]) -> dict[str, Any]:
    """Fields of the spec for a backend whose ranks are tasks. Raises UserError where it cannot start them here."""
    if launch.backend == "srun" and not in_slurm:
        raise UserError(
            "launch.backend = 'srun' starts each rank as a task of a Slurm job, and this is in none (launch.where, "
            "SLURM_JOB_ID). On this machine alone use launch.backend: spawn"
        )
    if launch.backend != "mpi":
        return {}
    found = find(in_slurm, launch.python or sys.executable, env)
    return {"mpi": choose(launch.mpi, found), "mpirun": family(found.mpirun), "mpi_said": found.said}


def refuse_typed(backend: str) -> None:
    """Raise UserError for a backend that reaches out to other nodes, where each node was started by hand."""
    if backend in ("srun", "mpi"):
        raise UserError(
            f"launch.backend = {backend!r} starts the ranks of all nodes from the first one. Nodes that are typed one "
            "by one start their own: use launch.backend: spawn, or `launch` with mpirun or in a Slurm job"
        )


def find(in_slurm: bool, python: str, env: Mapping[str, str]) -> Found:
    """Ask the programs of this machine; each answers in well under a second, or is taken not to be there."""
    listed = parse_types(_ask(["srun", "--mpi=list"], env)) if in_slurm else ()
    unloadable = {}
    if "pmix" in listed:  # listed is what lies in the plugins' folder; whether it loads shows only when it is used
        said = _ask(["srun", "--mpi=pmix", "--test-only", "--ntasks=1", "true"], env)
        broken = next((line for line in said.splitlines() if PMIX_UNLOADABLE.search(line)), "")
        if broken:
            unloadable["pmix"] = broken.removeprefix("srun: error:").strip()
    mpirun = next((line for line in _ask(["mpirun", "--version"], env).splitlines() if line.strip()), "")
    library = _ask([python, *LIBRARY_COMMAND], env, errors=False)
    return Found(in_slurm, listed, unloadable, mpirun, library.strip())


def parse_types(text: str) -> tuple[str, ...]:
    """The types in the output of `srun --mpi=list`, one a line, which older versions print as errors."""
    words = (line.removeprefix("srun:").strip() for line in text.splitlines())
    return tuple(word for word in words if re.fullmatch(r"[a-z0-9_]+", word))


def _ask(command: Sequence[str], env: Mapping[str, str], errors: bool = True) -> str:
    stderr = subprocess.STDOUT if errors else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
            errors="replace", timeout=ASK_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
