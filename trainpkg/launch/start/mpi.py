"""Which rank MPI makes of a task, found out by a short-lived process, so that nothing of MPI stays in a rank.

`python -m trainpkg.launch.start.mpi` initialises MPI, prints rank, size and the place among the ranks that share this
machine, and finalises it; with `--library` it prints the library's version without initialising it. The ranks' own
group is gloo's or nccl's. An MPI that its launcher did not reach makes each task a world of its own, without an error:
that is refused here, with what the launcher has said of itself. mpi4py is imported in that process alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch import network, processes
from trainpkg.launch.spec import Spec
from trainpkg.launch.start.identity import Identity

MARK = "trainpkg-mpi "  # MPI libraries write warnings wherever they like
LIBRARY_COMMAND = ("-m", "trainpkg.launch.start.mpi", "--library")
SHOWN_LINES = 3
LIBRARY_TIMEOUT_S = 60.0


def family(text: str) -> str:
    """Whose launcher or library a version text is: those of one family understand each other."""
    if "Open MPI" in text or "open-mpi" in text.lower():
        return "Open MPI"
    return "MPICH" if any(name in text for name in ("MPICH", "HYDRA", "Intel(R) MPI", "MVAPICH")) else ""


def identify(spec: Spec, generation: int, env: Mapping[str, str]) -> Identity:
    """Who this task is by MPI. Raises UserError when MPI does not come up, or gives a world of singletons."""
    plan = read_plan(spec, generation)
    command = [sys.executable, "-m", "trainpkg.launch.start.mpi"]
    try:
        # PMI reaches a process through a descriptor that its launcher left open
        done = subprocess.run(
            command, env=environment(plan["master_addr"], int(plan["master_port"]), env), close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=spec.timeouts.init_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"MPI_Init did not come back within {error.timeout:g} s. {advice(spec)}") from error
    lines = done.stdout.splitlines()
    said = [line for line in lines if line.strip() and not line.startswith(MARK)]
    found = next((json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)), None)
    if found is None:
        tail = " | ".join(telling(said)) or "nothing"
        raise UserError(f"MPI did not come up in a task (status {done.returncode}), which said: {tail}. {advice(spec)}")
    if found["size"] == 1 < plan["world_size"]:
        raise UserError(
            f"MPI says rank 0 of 1 in each of {plan['world_size']} tasks: {family(found['library'])} was not reached "
            f"by what started it ({spec.mpi}). It is {found['library']}. {advice(spec)}"
        )
    return in_plan(found, plan["nodes"], one_machine=spec.simulated)


def in_plan(found: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], one_machine: bool) -> Identity:
    """What MPI said, as an identity that the node's launcher holds against the plan.

    The ranks that share memory are not always those of a node: simulated nodes share one machine, and an MPI without
    shared memory counts each rank alone. Where their number is not the node's, the local rank is the plan's.
    """
    told = [f"MPI_Comm_rank={found['rank']}", f"MPI_Comm_size={found['size']}"]
    offset, count = next(
        (
            (node["rank_offset"], node["num_ranks"])
            for node in nodes
            if 0 <= found["rank"] - node["rank_offset"] < node["num_ranks"]
        ),
        (0, 0),
    )
    local_rank = found["rank"] - offset
    if found["local_size"] == count and not one_machine:
        local_rank = found["local_rank"]
        told.append(f"MPI_COMM_TYPE_SHARED={local_rank}")
    return Identity("mpi", found["rank"], found["size"], local_rank, count or None, told=tuple(told))


def advice(spec: Spec) -> str:
    """What to try, with what the programs said when they were asked at the start."""
    other = "start with PMIx (launch.mpi: pmix, which is srun --mpi=pmix)" if spec.where == "slurm" else (
        "use the mpirun of the MPI that mpi4py loads"
    )  # fmt: skip
    return f"{other[0].upper()}{other[1:]}. Found at the start: {spec.mpi_said}"


def telling(lines: list[str]) -> list[str]:
    """The lines of an MPI library's complaint that say something: those with an error first."""
    plain = [line.strip() for line in lines if set(line.strip()) - set("-=* ")]
    errors = [line for line in plain if "error" in line.lower()]
    return [line[:200] for line in dict.fromkeys([*errors, *plain])][:SHOWN_LINES]


def environment(master_addr: str, master_port: int, env: Mapping[str, str]) -> dict[str, str]:
    """What Open MPI reads: plain TCP over the interface that leads to the master; what the user set stays.

    docker0 has the same address on all hosts, and a fabric's own transport can fail for want of locked memory, where
    nothing but a few bytes is to be said.
    """
    interface = network.interface_of(network.source_address_towards(master_addr, master_port) or "")
    wanted = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}
    if interface:
        wanted |= {"OMPI_MCA_btl_tcp_if_include": interface, "OMPI_MCA_oob_tcp_if_include": interface}
    return wanted | dict(env)


def read_plan(spec: Spec, generation: int) -> dict[str, Any]:
    """plan.json of a generation."""
    path: Path = spec.generation_dir(generation) / "plan.json"
    try:
        plan: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"the plan {path} cannot be read: {error}") from error
    return plan


def library_version(initialise: bool) -> str:
    """MPI_Get_library_version, in one line. Imports mpi4py; SystemExit with a sentence where that cannot be."""
    try:
        import mpi4py

        mpi4py.rc.initialize = initialise
        from mpi4py import MPI
    except ImportError as error:
        raise SystemExit(
            f"launch.backend = 'mpi' needs mpi4py and an MPI library on every node: {error}. "
            "pip install 'trainpkg[mpi]', and openmpi-bin or mpich from the system (or a module in launch.prologue; "
            "MPI4PY_LIBMPI names a library)"
        ) from error
    return " ".join(MPI.Get_library_version().strip("\0").split())


def library_here() -> str:
    """The version of the library that ranks of this node load. Raises UserError with the reason when they load none."""
    try:
        done = subprocess.run(
            [sys.executable, *LIBRARY_COMMAND], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=LIBRARY_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"mpi4py did not load its MPI library within {error.timeout:g} s") from error
    if done.returncode != 0:
        raise UserError(" ".join(telling(done.stderr.splitlines())))
    return done.stdout.strip()


def main() -> None:
    """One line on standard output."""
    if "--library" in sys.argv:
        print(library_version(initialise=False))
        return
    processes.die_with_parent(signal.SIGKILL)  # a hanging MPI_Init must not outlive its task
    library = library_version(initialise=True)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    here = world.Split_type(MPI.COMM_TYPE_SHARED)
    found = {"rank": world.rank, "size": world.size, "local_rank": here.rank, "local_size": here.size}
    here.Free()
    MPI.Finalize()
    print(MARK + json.dumps({**found, "library": library, "pid": os.getpid()}), flush=True)


if __name__ == "__main__":
    main()
