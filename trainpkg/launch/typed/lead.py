"""The command of node 0: it holds HOST:PORT and runs what `launch` runs, with its own node process as a child."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path

from pydantic import ValidationError

from trainpkg import sheet
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head.job import launch
from trainpkg.launch.head.meeting.reception import Endpoint, turn_away
from trainpkg.launch.typed import address, join
from trainpkg.launch.typed.command import Typed, command_lines
from trainpkg.launch.typed.secret import read_secret


def main(args: argparse.Namespace, typed: Typed) -> int:
    """Returns the status of the whole launch."""
    if args.config is None:
        raise UserError("no CONFIG: node 0 reads the config (config/config.yaml), and tells the other nodes")
    loaded = sheet.load(args.config)
    run = with_typed(chosen_run(loaded, args.run), typed, args.start_timeout)
    if args.secret_file is None and typed.num_nodes > 1:
        raise UserError("--secret-file is not given: it proves that the nodes belong together")
    secret = os.urandom(32).hex() if args.secret_file is None else read_secret(args.secret_file)
    try:
        here, warning = address.own_address(typed.host, typed.num_nodes, typed.local, os.environ)
        listener = address.hold(here, typed.port)
    except UserError as error:
        answer = asyncio.run(join.tell_of_second(typed, secret)) if args.secret_file else ""
        raise UserError(f"{error}. {answer}" if answer else str(error)) from error
    join.say(f"node 0 of {typed.num_nodes} on {socket.gethostname()} ({', '.join(typed.taken)})")
    if warning:
        join.say(f"warning: {warning}")
    url = f"tcp://[{typed.host}]:{typed.port}" if ":" in typed.host else f"tcp://{typed.host}:{typed.port}"
    gpus = None if typed.gpus_per_node is None else ",".join(map(str, typed.gpus_per_node))
    lines = command_lines(typed.num_nodes, gpus, url, str(args.secret_file), str(args.config), run.run, typed.local)
    for text in without_effect(run):
        join.say(f"warning: {text}")
    endpoint = Endpoint(typed, here, listener, secret, lines)
    with listener:
        try:
            status = launch(run, typed.stage, output_of(loaded, run, typed.stage), where="typed", endpoint=endpoint)
        except UserError as error:
            asyncio.run(turn_away(endpoint, error.status, str(error)))
            raise
        words = endpoint.last_words or f"{typed.stage} of run {run.run!r} was finished already"
        asyncio.run(turn_away(endpoint, status, words))
        return status


def chosen_run(loaded: sheet.Sheet, name: str | None) -> Run:
    """The run of that name, or the only one."""
    if name is None and len(loaded.runs) != 1:
        raise UserError(
            f"--run is not given, and {loaded.workflow.sheet} has {len(loaded.runs)}: {', '.join(loaded.runs)}"
        )
    return loaded.run(name) if name is not None else next(iter(loaded.runs.values()))


def with_typed(run: Run, typed: Typed, start_timeout_s: float | None) -> Run:
    """The run with what was typed in place of the config's. Raises UserError where other keys contradict that."""
    gpus = typed.gpus_per_node
    keys: dict[str, object] = {"nodes": typed.num_nodes}
    if gpus is not None:
        keys["gpus_per_node"] = gpus[0] if len(set(gpus)) == 1 else None  # uneven: the spec has the list
    if start_timeout_s is not None:
        keys["start_timeout_s"] = start_timeout_s
    tree = run.tree()
    tree["launch"] |= keys
    try:
        return Run.model_validate(tree)
    except ValidationError as error:
        told = "; ".join(str(detail["msg"]).removeprefix("Value error, ") for detail in error.errors())
        raise UserError(f"run {run.run!r} with {', '.join(typed.taken)}: {told}") from error


def without_effect(run: Run) -> list[str]:
    """Sentences on keys that are for nodes which `launch` starts. Raises UserError where the ranks need Slurm."""
    if run.launch.backend in ("srun", "mpi"):
        raise UserError(
            f"launch.backend = {run.launch.backend!r} starts ranks as tasks of Slurm; where nodes are typed, take "
            "spawn, torchrun, torchrun-static or command"
        )
    names = [name for name in ("prologue", "wrapper", "python", "srun_args") if getattr(run.launch, name)]
    return [f"launch.{name} has no effect where nodes are typed: type it, before the command" for name in names]


def output_of(loaded: sheet.Sheet, run: Run, stage: str) -> Path:
    """The file that Snakemake's rule of the stage declares."""
    if stage == "smoke":
        return loaded.results_dir / "smoke" / f"{sheet.topology(run)}.json"
    name = {"train": "train.json", "evaluate": "evaluation.json"}[stage]
    return loaded.results_dir / "runs" / run.run / name
