"""What was typed on one machine: flags and variables become a `Typed`, a value that is sent, compared and printed.

Pure, of the standard library. A flag and a variable that say the same thing differently are an error; which of them was
taken is kept, to be said.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch.network import validate_address, validate_port
from trainpkg.launch.slurm.grammar import expand_counts, parse_int, quote

MAX_NODES = 1024  # by hand
DEFAULT_PORT = 29500  # as torchrun has it
STAGES = ("smoke", "train", "evaluate")


@dataclass(frozen=True)
class Typed:
    """One machine's command. `gpus_per_node` has one number per node; None: each node takes all that it shows."""

    num_nodes: int
    node_rank: int
    gpus_per_node: tuple[int, ...] | None
    host: str
    port: int
    local: bool = False  # all nodes are on this machine
    stage: str = "train"
    run: str | None = None
    taken: tuple[str, ...] = ()

    def question(self, host: str, pid: int) -> dict[str, Any]:
        """What a node says to node 0 before it knows anything of the run."""
        gpus = None if self.gpus_per_node is None else list(self.gpus_per_node)
        said: dict[str, Any] = {"type": "typed", "host": host, "pid": pid, "num_nodes": self.num_nodes}
        return said | {"node_rank": self.node_rank, "gpus_per_node": gpus, "stage": self.stage, "run": self.run}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="the config file; read on node 0 alone")
    parser.add_argument("--run", help="name of the run; may be left out where the sheet has one")
    parser.add_argument("--stage", choices=STAGES, default="train", help="what to run (default: train)")
    parser.add_argument("--num-nodes", metavar="N", help="number of machines, one command on each [NNODES]")
    parser.add_argument("--node-rank", metavar="K", help="index of this machine, from 0 [NODE_RANK]")
    parser.add_argument(
        "--gpus-per-node",
        metavar="G",
        help="ranks per node: one number for all nodes, or one per node as in 4(x2),2 (the same on every machine); "
        "left out: what each node shows [LOCAL_WORLD_SIZE]",
    )
    parser.add_argument(
        "--dist-url",
        metavar="tcp://HOST:PORT",
        help="an address of node 0, where it listens [MASTER_ADDR, MASTER_PORT]",
    )
    parser.add_argument("--local", action="store_true", help="all nodes are on this machine: HOST may be loopback")
    parser.add_argument("--secret-file", type=Path, metavar="FILE", help="the same secret on all machines, mode 600")
    parser.add_argument(
        "--start-timeout",
        type=float,
        metavar="S",
        help="wait so long for all machines (default: launch.start_timeout_s)",
    )


def resolve(args: argparse.Namespace, env: Mapping[str, str]) -> Typed:
    """What the flags and the variables say together.

    Raises:
        UserError: they contradict each other, say too little, or what they say cannot be.
    """
    _refuse_tasks(env)
    taken: list[str] = []
    nodes_said = _choose("--num-nodes", args.num_nodes, "NNODES", env, taken)
    rank_said = _choose("--node-rank", args.node_rank, "NODE_RANK", env, taken)
    where = _where(args.dist_url, env, taken)
    lacking = [] if nodes_said else ["--num-nodes (or NNODES)"]
    lacking += [] if rank_said else ["--node-rank (or NODE_RANK)"]
    lacking += [] if where else ["--dist-url tcp://HOST:PORT (or MASTER_ADDR and MASTER_PORT)"]
    if nodes_said is None or rank_said is None or where is None:
        raise UserError(
            f"not said: {', '.join(lacking)}. `node` is typed once on each machine; `python -m trainpkg plan "
            "--num-nodes 4 --gpus-per-node 8 --dist-url tcp://HOST:PORT CONFIG` prints the lines"
        )
    num_nodes = parse_int(nodes_said[1], nodes_said[0], low=1, high=MAX_NODES)
    gpus = _gpus_per_node(args.gpus_per_node, env, num_nodes, taken)
    node_rank = _node_rank(rank_said, num_nodes, gpus)
    here = env.get("LOCAL_WORLD_SIZE")
    if args.gpus_per_node is not None and here is not None and gpus and here != str(gpus[node_rank]):
        raise UserError(
            f"--gpus-per-node is {quote(args.gpus_per_node)}, {gpus[node_rank]} for node {node_rank}, but "
            f"LOCAL_WORLD_SIZE is {quote(here)}. Leave the flag out, or unset the variable"
        )
    more = {"local": args.local, "stage": args.stage, "run": args.run}
    return Typed(num_nodes, node_rank, gpus, *where, **more, taken=tuple(taken))


def parse_dist_url(text: str, name: str = "--dist-url") -> tuple[str, int]:
    """`tcp://HOST:PORT` -> host and port; an IPv6 address stands in brackets. Raises UserError quoting the text."""
    match = re.fullmatch(r"tcp://(\[[^\[\]]*\]|[^:/\[\]]*):([^:/]*)/?", text)
    if match is None:
        raise UserError(f"{name} is {quote(text)}, which is not of the form tcp://HOST:PORT (IPv6: tcp://[::1]:PORT)")
    host = match[1].strip("[]")
    address = validate_address(host, f"HOST of {name}={quote(text)}")
    return address, validate_port(match[2], f"PORT of {name}={quote(text)}")


def command_lines(
    num_nodes: int,
    gpus_per_node: str | None,
    dist_url: str,
    secret_file: str,
    config: str,
    run: str | None,
    local: bool = False,
) -> list[str]:
    """What to type on each machine, in node order."""
    lines = []
    for index in range(num_nodes):
        words = ["python", "-m", "trainpkg", "node", "--num-nodes", str(num_nodes), "--node-rank", str(index)]
        words += ["--gpus-per-node", gpus_per_node] if gpus_per_node else []
        words += ["--dist-url", dist_url, *(["--local"] if local else []), "--secret-file", secret_file, config]
        lines.append(shlex.join(words + (["--run", run] if run else [])))
    return lines


@dataclass(frozen=True)
class TypedPlan:
    """What `plan` was told of nodes that people will type."""

    host: str
    port: int
    local: bool
    secret_file: str
    config: str
    run: str | None

    def lines(self, num_nodes: int, gpus_per_node: str | None) -> list[str]:
        """The commands of all machines, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        url = f"tcp://{host}:{self.port}"
        typed = command_lines(num_nodes, gpus_per_node, url, self.secret_file, self.config, self.run, self.local)
        make = f"(umask 077; head -c 32 /dev/urandom | base64 > {shlex.quote(self.secret_file)})"
        first = f"once, then copied to every machine: {make}"
        return [first, *(f"on node {index}: {line}" for index, line in enumerate(typed))]


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `plan` for machines without Slurm, on each of which `node` will be typed."""
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="print what to type on machines without Slurm")
    parser.add_argument("--run", help="name of the run, in what is to be typed")
    parser.add_argument("--dist-url", metavar="tcp://HOST:PORT", help="where node 0 will listen: an address of it")
    parser.add_argument("--secret-file", default="secret", metavar="FILE", help="in what is to be typed")
    parser.add_argument("--local", action="store_true", help="all nodes will be on one machine")


def read_plan_arguments(args: argparse.Namespace, hosts: tuple[str, ...] | None) -> TypedPlan | None:
    """What was said of typed nodes, None if nothing; without --dist-url the first of `hosts` is node 0's."""
    if args.config is None and args.dist_url is None:
        return None
    if args.dist_url is None and hosts is None:
        raise UserError("--dist-url is not given, and no --hosts: the nodes need an address of node 0 to call")
    host, port = parse_dist_url(args.dist_url) if args.dist_url is not None else ((hosts or ("",))[0], DEFAULT_PORT)
    config = args.config or "config/config.yaml"
    return TypedPlan(host, port, args.local, args.secret_file, config, args.run)


def _refuse_tasks(env: Mapping[str, str]) -> None:
    """F033: a command that starts all ranks of a node must not itself be started once per rank."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"):
        if env.get(name, "0") != "0":
            raise UserError(
                f"{name} is {quote(env[name])}: a launcher has started this command more than once on this machine, "
                "and `node` itself starts all ranks of its node. Start it once per machine (--ntasks-per-node=1); what "
                "another launcher starts once per rank is `python -m trainpkg train`"
            )


def _choose(
    flag: str, typed: str | None, variable: str, env: Mapping[str, str], taken: list[str]
) -> tuple[str, str] | None:
    """(name, value) of the flag or the variable; None where neither is given."""
    given = env.get(variable)
    if typed is not None and given is not None and typed != given:
        raise UserError(
            f"{flag} is {quote(typed)}, but {variable} is {quote(given)}. Leave the flag out, or unset the variable"
        )
    if typed is None and given is None:
        return None
    name, value = (flag, typed) if typed is not None else (variable, str(given))
    taken.append(f"{name}={value}")
    return name, value


def _where(dist_url: str | None, env: Mapping[str, str], taken: list[str]) -> tuple[str, int] | None:
    given = {name: env[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in env}
    if dist_url is None and len(given) < 2:
        return None
    address = validate_address(given["MASTER_ADDR"], "MASTER_ADDR") if "MASTER_ADDR" in given else None
    port = validate_port(given["MASTER_PORT"], "MASTER_PORT") if "MASTER_PORT" in given else None
    if dist_url is None:
        assert address is not None and port is not None
        taken += [f"{name}={value}" for name, value in given.items()]
        return address, port
    host, its_port = parse_dist_url(dist_url)
    if address not in (None, host) or port not in (None, its_port):
        told = " and ".join(f"{name} is {quote(value)}" for name, value in given.items())
        raise UserError(f"--dist-url is {quote(dist_url)}, but {told}. Leave the flag out, or unset the variables")
    taken.append(f"--dist-url={dist_url}")
    return host, its_port


def _gpus_per_node(
    flag: str | None, env: Mapping[str, str], num_nodes: int, taken: list[str]
) -> tuple[int, ...] | None:
    name, text = ("--gpus-per-node", flag) if flag is not None else ("LOCAL_WORLD_SIZE", env.get("LOCAL_WORLD_SIZE"))
    if text is None:
        return None
    taken.append(f"{name}={text}")
    counts = expand_counts(text, name)
    if len(counts) == 1 and "(" not in text:
        counts *= num_nodes
    if len(counts) != num_nodes or 0 in counts:
        raise UserError(
            f"{name} is {quote(text)}, for {len(counts)} node(s), but there are {num_nodes}. Give one number (from 1) "
            "for all nodes, or one for each as in `4(x2),2`"
        )
    return tuple(counts)


def _node_rank(said: tuple[str, str], num_nodes: int, gpus: tuple[int, ...] | None) -> int:
    name, text = said
    index = parse_int(text, name, high=MAX_NODES * 1024)
    if index < num_nodes:
        return index
    firsts = {sum(gpus[:k]): k for k in range(num_nodes)} if gpus else {}
    hint = ""
    if index in firsts:
        meant = firsts[index]
        hint = f". {index} is the first rank of node {meant}: the index of the node is asked for, {name} {meant}"
    raise UserError(f"{name} is {index}, but there are {num_nodes} nodes, 0 to {num_nodes - 1}{hint}")
