"""The subcommand `convert`: a recipe on standard output, or into a file; nothing is run.

What a recipe says is `corenet`'s business; with --run-corenet it starts CoreNet itself, and nothing is converted.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from trainpkg.convert import corenet, leaves, names
from trainpkg.convert.leaves import Leaf
from trainpkg.errors import UserError

# what the launcher tells CoreNet on the command line, which its YAML would overrule
TOLD = ("ddp.rank", "ddp.world_size", "ddp.dist_url", "ddp.backend", "common.results_loc")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The recipe has what both have, with the line that each value comes from, and says of every other line why it "
        "is not in it. CoreNet's batch is per GPU and its length may be in epochs, hence the numbers asked for."
    )
    parser.add_argument("source", choices=["corenet"], help="whose config it is")
    parser.add_argument("config", type=Path, nargs="?", help="CoreNet's YAML file")
    parser.add_argument("--nodes", type=_count, help="nodes of the run")
    parser.add_argument("--gpus-per-node", type=_count, help="GPUs of each node")
    parser.add_argument("--samples", type=_count, help="samples of the training set, where the length is in epochs")
    parser.add_argument(
        "--run-corenet", action="store_true", help="a recipe that starts corenet-train itself, once per node"
    )
    parser.add_argument("--out", type=Path, help="write the recipe to this file, which must not exist yet")
    parser.add_argument("--names", action="store_true", help="only print CoreNet's options and what they are here")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def main(args: argparse.Namespace) -> int:
    """Print or write the recipe."""
    if args.names:
        print(names.table())
        return 0
    if args.config is None:
        raise UserError("convert corenet: the YAML file is missing (or --names)")
    for name in ("nodes", "gpus_per_node"):
        if getattr(args, name) is None:
            asked = names.option(name)
            raise UserError(f"convert corenet: {asked} is missing: CoreNet's dataset.train_batch_size0 is per GPU")
    found = leaves.read(args.config)
    size = corenet.Size(args.nodes, args.gpus_per_node, args.samples)
    if args.run_corenet:
        text = running(args.config, found, size)
    else:
        text = "\n".join(corenet.lines(corenet.convert(found, size), args.config.name)) + "\n"
    if args.out is None:
        sys.stdout.write(text)
        return 0
    try:
        with args.out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UserError(f"--out {args.out}: the file exists already; remove it, or take another name") from error
    except OSError as error:
        raise UserError(f"--out {args.out}: {error.strerror}") from error
    print(f"written: {args.out}; name it in the column `recipe` of the sheet, then `trainpkg check`")
    return 0


def running(config: Path, found: Mapping[str, Leaf], size: corenet.Size) -> str:
    """A recipe that starts corenet-train once per node of a job, as its guide for several nodes says.

    Raises:
        UserError: the YAML file says what the launcher has to say, and CoreNet would believe the file.
    """
    for key in TOLD:
        if key in found:
            raise UserError(
                f"{config}, {found[key]}: CoreNet's YAML has the last word over its command line, so that every node "
                f"would take this value. Remove the line: the launcher says {names.option(key)} to each node"
            )
    path = shlex.quote(str(config.resolve())).replace("{", "{{").replace("}", "}}")
    return f"""\
# CoreNet itself, started once per node (docs/corenet.md). Relative paths in its YAML are looked up in the folder in
# which Snakemake is started.
launch:
  nodes: {size.nodes}
  gpus_per_node: {size.gpus_per_node}
  backend: command
  command: >-
    corenet-train --common.config-file {path} --common.results-loc {{run_dir}}
    --ddp.rank {{rank_offset}} --ddp.world-size {{world_size}} --ddp.dist-url {{dist_url}} --ddp.backend nccl
"""
