"""Ranks as someone else's launcher starts them: `trainpkg train` in processes with that launcher's variables alone."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.distributed.start import TINY, Ranks, _forkserver
from trainpkg.__main__ import main

OTHERS = re.compile("RANK|WORLD_SIZE|LOCAL_|MASTER_|OMPI_|PMI|MPI_|SLURM|TORCHELASTIC")


def write_config(folder: Path, **launch: Any) -> Path:
    """The tiny digits run, in a config of its own below `folder`."""
    recipe = {key: value for key, value in TINY["digits"].items() if key not in ("run", "recipe")}
    recipe["launch"] = {"device": "cpu", "init_timeout_s": 30.0, **launch}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "runs.tsv").write_text("run\trecipe\ndigits\ttiny\n")
    tree = {"results_dir": str(folder / "results"), "sheet": str(folder / "runs.tsv"), "recipes": str(folder)}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return folder / "config.yaml"


def _enter(log: str, env: dict[str, str], words: list[str]) -> None:
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((0, os.devnull), (1, log), (2, log)):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), number)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os._exit(main(words))


def start_guests(folder: Path, environments: list[dict[str, Any]]) -> Ranks:
    """One process per environment, forked from one that has imported torch; their outputs are the `logs`."""
    ranks = Ranks(folder)
    kept = {name: value for name, value in os.environ.items() if not OTHERS.match(name)}
    for number, environment in enumerate(environments):
        env = kept | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in environment.items()}
        ranks.logs.append(folder / f"guest-{number}.log")
        words = ["train", "--config", str(folder / "config.yaml"), "--run", "digits"]
        process = _forkserver.Process(target=_enter, args=(str(ranks.logs[-1]), env, words), daemon=True)
        process.start()
        ranks.processes.append(process)
    return ranks
