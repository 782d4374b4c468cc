"""The starter that a spec asks for."""

from __future__ import annotations

from trainpkg.launch.spec import Spec
from trainpkg.launch.start.execute import ExecStarter
from trainpkg.launch.start.fork import ForkStarter
from trainpkg.launch.start.guards import Guards
from trainpkg.launch.start.starter import Calls, Starter


def make_starter(spec: Spec, env: dict[str, str], calls: Calls) -> Starter:
    """The starter that the spec asks for, its preparations already under way. `env` holds what imports read."""
    if spec.backend in ("srun", "mpi"):
        return Guards(env, calls)
    assert spec.backend == "spawn", spec.backend
    return ForkStarter(spec.preload, env, calls) if spec.start == "fork" else ExecStarter(env, calls)
