"""A model of the user's own in the folder that Snakemake is started in: tried before anything is submitted."""

from __future__ import annotations

from pathlib import Path

from tests.workflow.conftest import Snakemake

RECIPE = """\
task: images
model: {name: "mine:Net", kwargs: {width: 4}}
data: {name: digits}
train: {max_steps: 4, global_batch: 16}
launch: {nodes: 2, gpus_per_node: 1, device: cpu}
"""
NET = """\
from torch import nn


class Net(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(SIZE, width), nn.ReLU(), nn.Linear(width, 10))
"""


def test_what_does_not_fit_is_told_when_snakemake_starts(snakemake: Snakemake, checkout: Path) -> None:
    (checkout / "config/recipes/own.yaml").write_text(RECIPE)
    (checkout / "config/runs.tsv").write_text("run\trecipe\na\town\n")
    (checkout / "mine.py").write_text(NET.replace("SIZE", "65"))
    done = snakemake("-n", status=1)
    assert "run 'a': a batch of the training samples, " in done.stdout + done.stderr
    (checkout / "mine.py").write_text(NET.replace("SIZE", "64"))
    planned = snakemake("-n", "smoke_test").stdout
    assert "smoke/2x1-cpu-ddp-spawn-mine.Net.json" in planned
