"""The demo's GPT under every strategy: one plot of the losses, and how far they are apart.

`python -m benchmarks.curves [--steps 200]` trains one run per strategy on two simulated nodes of two ranks (`single`:
on one), makes the tables, and writes docs/curves.svg (the plot that `summarise` makes of any sheet) and docs/curves.md.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch

DOCS = Path(__file__).parents[1] / "docs"
CONFIG = """\
results_dir: {folder}/results
sheet: {folder}/runs.tsv
recipes: {folder}/recipes
launch: {{where: local, device: cpu}}
logging: {{every_steps: 5, eval_every_steps: 1000}}
checkpoint: {{every_steps: 1000}}
"""
RECIPE = """\
task: language
model: {{name: gpt, dim: 96, depth: 2, heads: 4, context: 64}}
data: {{name: python_text, max_bytes: 2000000}}
optim: {{lr: 6e-3, weight_decay: 0.1, warmup_steps: 20}}
train: {{max_steps: {steps}, global_batch: 32}}
"""
SHEET = """\
run	recipe	strategy	sequence_parallel	launch.nodes	launch.gpus_per_node
single	gpt	single	1	1	1
ddp	gpt	ddp	1	2	2
fsdp	gpt	fsdp	1	2	2
hsdp	gpt	hsdp	1	2	2
sequence-ddp	gpt	ddp	2	2	2
sequence-fsdp	gpt	fsdp	2	2	2
"""


def train(folder: Path, steps: int) -> pd.DataFrame:
    """The steps table of all runs."""
    (folder / "recipes").mkdir()
    (folder / "recipes/gpt.yaml").write_text(RECIPE.format(steps=steps))
    (folder / "runs.tsv").write_text(SHEET)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(folder=folder))
    trainpkg = [sys.executable, "-m", "trainpkg"]
    for line in SHEET.splitlines()[1:]:
        run = line.split("\t")[0]
        out = folder / "results/runs" / run / "train.json"
        subprocess.run([*trainpkg, "launch", "train", "--config", config, "--run", run, "--out", out], check=True)
    subprocess.run([*trainpkg, "summarise", "--config", config], check=True)
    return pd.read_parquet(folder / "results/tables/steps.parquet")


def page(table: pd.DataFrame, steps: int) -> str:
    """docs/curves.md."""
    losses = table.pivot(index="step", columns="run", values="loss")
    rows = []
    for run in losses.columns:
        apart = (losses[run] / losses["single"] - 1).abs()
        rows.append(f"| {run} | {losses[run].iloc[-1]:.6f} | {apart.max():.1e} at step {apart.idxmax()} |")
    return "\n".join([
        "# The demo's GPT under every strategy",
        "",
        f"{steps} steps of the same global batch, on two simulated nodes of two ranks (`single`: one process), fp32,",
        f"torch {torch.__version__}, Python {platform.python_version()}. Written by `python -m benchmarks.curves`.",
        "",
        "Strategies sum in different orders, and what that rounds differently grows with the steps: after six of them",
        "no weight is farther than the tolerance of [features.md](features.md) from that of one process.",
        "",
        "![loss over steps](curves.svg)",
        "",
        "| run | last loss | farthest from `single`, relative |",
        "| --- | --- | --- |",
        *rows,
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory(prefix="curves-") as name:
        folder = Path(name)
        table = train(folder, steps)
        shutil.copy(folder / "results/plots/loss_over_steps.svg", DOCS / "curves.svg")
        (DOCS / "curves.md").write_text(page(table, steps))
    print((DOCS / "curves.md").read_text())


if __name__ == "__main__":
    main()
