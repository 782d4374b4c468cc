"""The subcommand `doctor`: looks at this machine, or reads a batch script, and prints a table with a fix per bad row.

Exit status 1 where a row is bad. Needs no job, no config and no torch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainpkg.errors import UserError
from trainpkg.launch.doctor import checks, rows
from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, Row

DEFAULT_CONFIG = Path("config/config.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="default: config/config.yaml, where there is one")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def main(args: argparse.Namespace) -> int:
    wanted, found = read_config(args.config)
    found += checks.examine(Machine(), wanted, checks.LOGIN)
    print(json.dumps(rows.as_json(found), indent=1) if args.json else rows.table(found))
    return 1 if rows.worst(found) == BAD else 0


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
