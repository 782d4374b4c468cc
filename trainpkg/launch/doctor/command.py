"""The subcommand `doctor`: looks at this machine, or reads a batch script, and prints a table with a fix per bad row.

Exit status 1 where a row is bad. Needs no job, no config and no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from trainpkg.errors import UserError
from trainpkg.launch.doctor import checks, nodes, rows
from trainpkg.launch.doctor.machine import Machine, Wanted, run_program
from trainpkg.launch.doctor.rows import BAD, Row
from trainpkg.launch.doctor.script import rules

SRUN_LIMIT_S = 120.0
DEFAULT_CONFIG = Path("config/config.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="default: config/config.yaml, where there is one")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--script", type=Path, metavar="FILE", help="read this sbatch script, and run nothing of it")
    parser.add_argument("--nodes", action="store_true", help="look at all nodes of the Slurm job that this shell is in")
    parser.add_argument("--one-node", action="store_true", help="a report of this node in pieces: what --nodes starts")


def main(args: argparse.Namespace) -> int:
    if args.script is not None:
        return judge_script(args.script, args.json)
    wanted, found = read_config(args.config)
    if args.one_node:
        print(nodes.own_report(wanted))
        return 0
    if args.nodes:
        found += nodes.merged(ask_nodes(args.config))
    else:
        found += checks.examine(Machine(), wanted, checks.LOGIN)
    print(json.dumps(rows.as_json(found), indent=1) if args.json else rows.table(found))
    return 1 if rows.worst(found) == BAD else 0


def judge_script(path: Path, as_json: bool) -> int:
    """Print what is known to go wrong in a batch script."""
    script = rules.read(path)
    print(json.dumps(rules.as_json(script), indent=1) if as_json else rules.as_text(script, str(path)))
    return 1 if any(found.verdict == BAD for _, found in rules.findings(script)) else 0


def ask_nodes(config: Path | None) -> nodes.Report:
    """Start a doctor on each node of the job with srun. Raises UserError where there is no job or srun fails."""
    from trainpkg.launch.head.steps import places
    from trainpkg.launch.slurm import control
    from trainpkg.launch.slurm.allocation import read_allocation

    allocation = read_allocation(os.environ)
    if allocation is None:
        raise UserError("doctor --nodes looks at the nodes of a Slurm job: start it inside salloc or a batch script")
    hosts = places.hosts_of_job(allocation, control.ask_slurm(control.own_name(os.environ)), None)
    command = ["srun", f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--ntasks-per-node=1", "--overlap"]
    command += [f"--cpus-per-task={allocation.cpus_per_task or 1}", "--cpu-bind=none", "--kill-on-bad-exit=0"]
    command += [sys.executable, "-m", "trainpkg", "doctor", "--one-node", *([f"--config={config}"] if config else [])]
    env = places.srun_environment(places.node_environment(os.environ, ""))
    done = run_program(command, SRUN_LIMIT_S, env)
    reports = nodes.gathered(done.out)
    if done.status != 0 or len(reports) < len(hosts):
        silent = ", ".join(host for host in hosts if host not in reports) or "no node"
        ended = "did not end" if done.status is None else f"ended with {done.status}"
        raise UserError(f"doctor --nodes: srun {ended}; no report from {silent}: {done.error}")
    return reports


def read_config(path: Path | None) -> tuple[Wanted, list[Row]]:
    """What the largest run of the config expects, and a row on the config itself."""
    from trainpkg import sheet

    if path is None and not DEFAULT_CONFIG.is_file():
        return Wanted(), [Row("config", "none here: checked without one")]
    path = path or DEFAULT_CONFIG
    try:
        loaded = sheet.load(path)
    except UserError as error:
        return Wanted(), [Row("config", str(error), BAD, "Correct it; `trainpkg check` says the same.")]
    runs = loaded.runs.values()
    largest = max(runs, key=lambda run: run.num_ranks or run.launch.nodes * 8)
    devices = {run.launch.device for run in runs}
    wanted = Wanted(
        results_dir=loaded.results_dir,
        world_size=largest.num_ranks or largest.launch.nodes * 8,
        num_ranks=largest.launch.gpus_per_node or 1,
        device=devices.pop() if len(devices) == 1 else "auto",
        backend="mpi" if any(run.launch.backend == "mpi" for run in runs) else largest.launch.backend,
    )
    return wanted, [Row("config", f"{path}: {len(loaded.runs)} runs, up to {wanted.world_size} ranks")]
