"""The subcommand `check`: what Snakemake does with the config at parse time, without Snakemake."""

from __future__ import annotations

import argparse

from trainpkg import contract, sheet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sheet.add_config_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print one line per run, or raise UserError with all errors of all runs."""
    loaded = sheet.load(sheet.config_of(args), tried=contract.problems)
    for run in loaded.runs.values():
        print(f"{run.run}: recipe {run.recipe}, {sheet.topology(run)}, fingerprint {run.fingerprint()}")
    print(f"{len(loaded.runs)} runs are fine; results go to {loaded.results_dir}")
    return 0
