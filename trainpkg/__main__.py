"""The command line: one subcommand per module, imported only when it is called, since start-up counts on every node."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys

from trainpkg import __version__
from trainpkg.errors import UserError

COMMANDS = {
    "check": ("trainpkg.check", "read the config, all recipes and the sheet, and say everything that is wrong in them"),
    "plan": ("trainpkg.launch.plan", "print who would be which rank, from the environment or from flags"),
    "launch": (
        "trainpkg.launch.head.job",
        "run one stage (smoke, train, evaluate) of a run on all its nodes; once per job",
    ),
    "node": (
        "trainpkg.launch.node.command",
        "start and watch the ranks of one node; typed once per machine where there is no Slurm",
    ),
    "doctor": (
        "trainpkg.launch.doctor.command",
        "look for what will go wrong here: limits, names, network, CUDA, Slurm, folders; each bad row has its fix",
    ),
    "train": ("trainpkg.guest.command", "train as one rank that torchrun, mpirun or srun has started"),
    "export": (
        "trainpkg.export",
        "write a run's weights into a folder that others can load, also as Hugging Face has it",
    ),
    "tokenize": (
        "trainpkg.tokenize",
        "make memory-mapped token files of text: bytes, or a Hugging Face tokenizer's tokens",
    ),
    "status": ("trainpkg.status.command", "show where each run stands, from files and one look at Slurm's queue"),
    "summarise": ("trainpkg.tables.summarise", "write tables and plots from the files of all runs, finished or not"),
    "convert": ("trainpkg.convert.command", "make a recipe from a config of another trainer: CoreNet"),
    "schema": ("trainpkg.schema", "write or compare the JSON Schema and the key table of config/README.md"),
}


def parser_for(chosen: str | None) -> argparse.ArgumentParser:
    """The parser with the arguments of the chosen subcommand alone, so that no other module is imported."""
    parser = argparse.ArgumentParser(
        prog="trainpkg",
        description="Launch, train, evaluate and tabulate PyTorch runs on Slurm clusters and on one machine.",
        epilog="`trainpkg COMMAND --help` explains one command. Snakemake's rules call these; so can you.",
    )
    parser.add_argument("--version", action="version", version=f"trainpkg {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            loaded = importlib.import_module(module)
            loaded.add_arguments(command)
            command.set_defaults(main=loaded.main)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; a user's mistake is printed as one sentence and ends with its own status."""
    if sys.version_info < (3, 11):  # noqa: UP036  # on a node, launch.python or a container chooses
        version = sys.version.split()[0]
        print(f"trainpkg: error: {sys.executable} is Python {version}; 3.11 or newer is needed", file=sys.stderr)
        return 2
    argv = sys.argv[1:] if argv is None else argv
    chosen = next((word for word in argv if not word.startswith("-")), None)
    args = parser_for(chosen if chosen in COMMANDS else None).parse_args(argv)
    try:
        status: int = args.main(args)
    except UserError as error:
        print(f"trainpkg: error: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("trainpkg: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def script() -> int:
    """What the shell calls. The process ends without a last look through all that its modules hold: 15 ms, not 80."""
    status = main()
    gc.freeze()
    return status


if __name__ == "__main__":
    sys.exit(script())
