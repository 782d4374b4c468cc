"""The starter that a spec asks for."""

from __future__ import annotations

from trainpkg.launch.spec import PROGRAMS, Spec
from trainpkg.launch.start.command import program_command
from trainpkg.launch.start.execute import ExecStarter
from trainpkg.launch.start.fork import ForkStarter
from trainpkg.launch.start.guards import Guards
from trainpkg.launch.start.program import ProgramStarter
from trainpkg.launch.start.starter import Calls, Orders, Starter
from trainpkg.launch.start.torchrun import agent_command


def make_starter(spec: Spec, env: dict[str, str], calls: Calls) -> Starter:
    """The starter that the spec asks for, its preparations already under way. `env` holds what imports read."""
    if spec.backend in ("srun", "mpi"):
        # Slurm may grant a task devices of its own; mpirun grants none, and launch.devices chooses among the node's
        return Guards(env, calls, own_devices=spec.mpi != "mpirun" and spec.devices is None)
    if spec.by_program:
        return ProgramStarter(env, calls, PROGRAMS[spec.backend], lambda *given: command_of(spec, *given), spec.foreign)
    if spec.start == "fork" and not spec.script:
        return ForkStarter(spec.preload, env, calls)
    return ExecStarter(env, calls)


def command_of(spec: Spec, orders: Orders, scratch: str) -> list[str]:
    """The command line of the program that starts a node's ranks."""
    if spec.backend == "command":
        return program_command(spec, orders.plan, orders.index)
    return agent_command(spec, orders.plan, orders.index, orders.local_addr, scratch)
