"""Where ranks of someone else's launcher meet: MASTER_ADDR and MASTER_PORT, checked. Pure, standard library."""

from __future__ import annotations

from collections.abc import Mapping

from trainpkg.errors import UserError
from trainpkg.launch.network import is_loopback, validate_address, validate_port
from trainpkg.launch.slurm.grammar import quote
from trainpkg.launch.start.identity import LAUNCHERS, Identity


def rendezvous(env: Mapping[str, str], identity: Identity) -> tuple[str, int] | None:
    """MASTER_ADDR and MASTER_PORT, checked; None where there is one rank and nobody to meet.

    Raises:
        UserError: one of them is missing, is no address or port, or leads each of several nodes to itself.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing and identity.world_size == 1:
        return None
    if missing:
        raise UserError(
            f"{' and '.join(missing)} not set, and {identity.world_size} ranks must meet somewhere: "
            f"{LAUNCHERS[identity.launcher]} says who is which rank, but not where rank 0 is. {_master_fix(identity)}"
        )
    address = validate_address(env["MASTER_ADDR"], "MASTER_ADDR")
    port = validate_port(env["MASTER_PORT"], "MASTER_PORT")
    if is_loopback(address) and identity.num_nodes is not None and identity.num_nodes > 1:
        raise UserError(
            f"MASTER_ADDR is {quote(address)} for {identity.num_nodes} nodes: each of them would wait for itself. "
            f"{_master_fix(identity)}"
        )
    return address, port


def _master_fix(identity: Identity) -> str:
    if identity.launcher == "slurm":
        first = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        return f"Put before srun: export MASTER_ADDR={first} MASTER_PORT=29500"
    if identity.launcher == "openmpi":
        return "Give mpirun: -x MASTER_ADDR=HOST -x MASTER_PORT=29500, with the host of rank 0"
    if identity.launcher in ("pmi", "mvapich2"):
        return "Give mpiexec: -genv MASTER_ADDR HOST -genv MASTER_PORT 29500, with the host of rank 0"
    return "Set MASTER_ADDR to an address of rank 0's host that all nodes reach, and MASTER_PORT, such as 29500"
