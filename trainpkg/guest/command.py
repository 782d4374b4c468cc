"""The subcommand `train`: one rank of a run that someone else's launcher has started.

Which rank it is, and by whose word, is settled here, before torch is imported: torch reads thread numbers then.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from trainpkg import presets
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch import network
from trainpkg.launch.start.identity import Identity, identify
from trainpkg.launch.start.meeting import rendezvous


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trainpkg import sheet

    parser.epilog = (
        "Start it as torchrun, mpirun or srun start any program, once per rank; `launch` starts ranks by itself. "
        "Which rank it is comes from RANK, LOCAL_RANK, WORLD_SIZE; OMPI_* or PMI_*; or SLURM_PROCID, SLURM_LOCALID, "
        "SLURM_NTASKS; where ranks meet from MASTER_ADDR and MASTER_PORT."
    )
    sheet.add_config_arguments(parser)
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--out", type=Path, help="the file that says that the run is done (default: its train.json)")


def main(args: argparse.Namespace) -> int:
    """Never returns where ranks run: a rank ends its process deliberately."""
    identity = identify(os.environ)
    print(identity.describe(), flush=True)
    where = rendezvous(os.environ, identity)
    from trainpkg import sheet

    loaded = sheet.load(sheet.config_of(args), lazily=True)
    run = loaded.run(args.run)
    if run.own_program:
        raise UserError(
            f"run {args.run!r} trains a program of your own (entry or launch.command), of which `train` is no rank: "
            "let your launcher start that program itself, or start the run with `trainpkg launch train`"
        )
    if where is not None and identity.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        require_own(where[0], os.environ)
    os.environ.update(surroundings(run, identity, where, os.environ))
    out = args.out or loaded.results_dir / "runs" / run.run / "train.json"
    from trainpkg.guest.rank import live_as_guest

    live_as_guest(identity, where, run, out)


def require_own(address: str, env: Mapping[str, str]) -> None:
    """Rank 0 serves the store at MASTER_ADDR, which must be an address of its host. Raises UserError (F007, F003)."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise UserError(f"MASTER_ADDR is {address!r}, which {socket.gethostname()} cannot resolve ({error})") from error
    own = [entry.address for entry in network.own_addresses()]
    if found & {*own, "127.0.0.1", "127.0.1.1", "::1"}:
        return
    hint = ""
    if env.get("SLURM_LAUNCH_NODE_IPADDR") in {address, *found}:
        hint = ": it is SLURM_LAUNCH_NODE_IPADDR, where srun was called; the first host of the job's node list is meant"
    raise UserError(
        f"MASTER_ADDR is {address} ({', '.join(sorted(found))}), which is not on the host of rank 0, "
        f"{socket.gethostname()} (have {', '.join(network.reachable_addresses()) or 'none'}){hint}"
    )


def surroundings(run: Run, identity: Identity, where: tuple[str, int] | None, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that a rank needs before torch is imported and that its launcher left open."""
    found = {name: value for name, value in presets.settings(run.launch.preset, "train").items() if name not in env}
    if "OMP_NUM_THREADS" not in env:
        own = env.get("SLURM_CPUS_PER_TASK", "")
        cpus = len(os.sched_getaffinity(0))
        share = min(int(own), cpus) if own.isdigit() and int(own) else cpus // (identity.local_world_size or 1)
        found["OMP_NUM_THREADS"] = str(max(1, share))
    found |= run.launch.env
    for name, value in run.launch.env_prepend.items():
        found[name] = f"{value}:{env[name]}" if env.get(name) else value
    if where is not None and not identity.one_node:
        source = network.source_address_towards(*where) or ""
        found |= network.interface_environment("" if network.is_loopback(source) else source, {**env, **found})
    return found
