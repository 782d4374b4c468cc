"""The subcommand `node`: started by `launch` with a spec, or typed once per machine. Standard library alone."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import signal
from pathlib import Path

from trainpkg.errors import UserError
from trainpkg.launch import processes
from trainpkg.launch import spec as specs
from trainpkg.launch.node.node import Node
from trainpkg.launch.slurm.grammar import parse_int
from trainpkg.launch.typed import command, join

SECRET = "TRAINPKG_SECRET"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command.add_arguments(parser)
    own = parser.add_argument_group("given by `launch`, which starts this once per node")
    own.add_argument("--spec", type=Path, help="spec.json of the attempt")
    own.add_argument("--head", metavar="ADDR[,ADDR..]:PORT", help="where the coordinator listens")


def main(args: argparse.Namespace) -> int:
    if args.spec is not None:
        return started(args)
    typed = command.resolve(args, os.environ)
    if typed.node_rank > 0:
        return join.main(args, typed)
    # by name: it reads the config, and the other nodes need nothing but the standard library
    status: int = importlib.import_module("trainpkg.launch.typed.lead").main(args, typed)
    return status


def started(args: argparse.Namespace) -> int:
    """A node of `launch`. Under Slurm its index is SLURM_NODEID."""
    secret = os.environ.pop(SECRET, "")  # ranks need no secret
    if not secret or args.head is None:
        raise UserError(
            f"--spec goes with --head and {SECRET}, which `launch` gives: it makes a secret for each job. A "
            f"launch.wrapper that clears the environment must let {SECRET}, PYTHONPATH and SLURM_NODEID through. By "
            "hand, `node` takes --num-nodes, --node-rank, --dist-url and --secret-file instead"
        )
    spec = specs.read(args.spec)
    if args.node_rank is None and "SLURM_NODEID" not in os.environ:
        raise UserError("the index of this node is not known: neither --node-rank nor SLURM_NODEID is given")
    name = "--node-rank" if args.node_rank is not None else "SLURM_NODEID"
    index = parse_int(args.node_rank if args.node_rank is not None else os.environ["SLURM_NODEID"], name)
    processes.adopt_orphans()
    if spec.where != "slurm":
        processes.die_with_parent(signal.SIGCONT)  # a stopped node wakes up, finds its coordinator gone, and cleans up
    return asyncio.run(Node(spec, args.spec, index, secret, args.head).run())
