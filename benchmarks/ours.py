"""A run of this package as the benchmarks start it: a folder with its config, the command, and what its files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.commands import python

if TYPE_CHECKING:
    from torch import Tensor

RUN = "bench"


def project(folder: Path, recipe: dict[str, Any], launch: dict[str, Any]) -> Path:
    """The config of one run in that folder; `launch` over what all benchmarks have."""
    (folder / "recipes").mkdir(parents=True)
    keys = {"where": "local", "nodes": 1, "device": "cpu", "max_restarts": 0} | launch
    (folder / "recipes" / f"{RUN}.yaml").write_text(yaml.safe_dump(recipe | {"launch": keys}))
    (folder / "runs.tsv").write_text(f"run\trecipe\n{RUN}\t{RUN}\n")
    places = {"results_dir": folder / "results", "sheet": folder / "runs.tsv", "recipes": folder / "recipes"}
    (folder / "config.yaml").write_text(yaml.safe_dump({key: str(path) for key, path in places.items()}))
    return folder / "config.yaml"


def arguments(config: Path) -> list[str]:
    return ["--config", str(config), "--run", RUN, "--out", str(run_dir(config) / "train.json")]


def command(config: Path) -> list[str]:
    return python("-m", "trainpkg", "launch", "train", *arguments(config))


def run_dir(config: Path) -> Path:
    return config.parent / "results" / "runs" / RUN


def records(config: Path) -> list[dict[str, Any]]:
    """Of training, so far."""
    path = run_dir(config) / "metrics.jsonl"
    whole, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")  # the last line may be half written
    lines = whole.splitlines()
    return [record for line in lines if (record := json.loads(line))["kind"] == "train"]


def said(config: Path) -> str:
    """What nodes and ranks have written so far."""
    return "".join(path.read_text(errors="replace") for path in run_dir(config).glob("launch/*/*/*.log"))


def weights(config: Path) -> dict[str, Tensor]:
    """The exported ones."""
    from safetensors.torch import load_file

    return load_file(run_dir(config) / "model/model.safetensors")
