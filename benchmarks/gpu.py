"""The GPT on the GPUs of this machine: every strategy, bf16, compiled or not, with throughput, memory and MFU.

`python -m benchmarks.gpu [--gpus N] [--model small|124m] [--steps 60]` trains one run per line through `launch` (nccl)
and prints the medians of the later half of the records; it also compares the losses with one process. Ready for when
there is a GPU: without one it says so and ends with 2. MFU: 6 x parameters x tokens per second, as in the appendix of
https://arxiv.org/abs/2204.02311 without its attention term, over the peak of --peak-tflops (dense bf16; by name below).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

# dense bf16, without sparsity, from NVIDIA's data sheets
PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "A10": 125.0, "V100": 125.0}
MODELS = {
    "small": "{name: gpt, dim: 256, depth: 4, heads: 4, context: 256}",
    "124m": "{name: gpt, dim: 768, depth: 12, heads: 12, context: 1024}",
}
CONFIG = """\
results_dir: {folder}/results
sheet: {folder}/runs.tsv
recipes: {folder}/recipes
launch: {{where: local, device: cuda, gpus_per_node: {gpus}}}
logging: {{every_steps: 5, eval_every_steps: 100000}}
checkpoint: {{every_steps: 100000}}
"""
RECIPE = """\
task: language
model: {model}
data: {{name: python_text, max_bytes: 8000000}}
optim: {{lr: 6e-4, warmup_steps: 10}}
train: {{max_steps: {steps}, global_batch: {batch}}}
"""


def variants(gpus: int) -> dict[str, dict[str, str]]:
    """Run name to its cells in the sheet."""
    several = ("ddp", "fsdp", "hsdp") if gpus > 1 else ("single", "ddp", "fsdp")
    found = {}
    for strategy in several:
        for precision in ("fp32", "bf16"):
            for compiled in ("false", "true"):
                name = f"{strategy}-{precision}{'-compiled' if compiled == 'true' else ''}"
                found[name] = {"strategy": strategy, "train.precision": precision, "train.compile": compiled}
    if gpus > 1:
        found["sequence-bf16"] = {"strategy": "ddp", "train.precision": "bf16", "sequence_parallel": "2"}
    return found


def sheet(runs: dict[str, dict[str, str]]) -> str:
    columns = sorted({key for cells in runs.values() for key in cells})
    lines = ["\t".join(["run", "recipe", *columns])]
    lines += ["\t".join([run, "gpt", *(cells.get(column, "") for column in columns)]) for run, cells in runs.items()]
    return "\n".join(lines) + "\n"


def told(run_dir: Path, peak: float, gpus: int) -> dict[str, Any]:
    """What a finished run's files say."""
    result = json.loads((run_dir / "train.json").read_text())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    later = [line for line in lines if line["kind"] == "train"]
    later = later[len(later) // 2 :]
    rate = statistics.median(line["tokens_per_second"] for line in later)
    return {
        "loss": later[-1]["loss"],
        "tokens_per_second": rate,
        "memory_mb": max(line["memory_mb"] for line in later),
        "mfu": 6 * result["num_parameters"] * rate / (gpus * peak * 1e12),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="samples per GPU and step")
    parser.add_argument("--peak-tflops", type=float)
    given = parser.parse_args()
    if not given.gpus:
        print("no GPU: torch.cuda.device_count() is 0 here", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name(0)
    known = next((peak for word, peak in PEAK_TFLOPS.items() if word in name), None)
    peak = given.peak_tflops or known
    if peak is None:
        print(f"the peak of {name} is not known here: give --peak-tflops", file=sys.stderr)
        return 2
    print(f"{given.gpus} x {name}, peak {peak:g} TFLOP/s, torch {torch.__version__}, model {given.model}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-") as place:
        folder, runs = Path(place), variants(given.gpus)
        (folder / "recipes").mkdir()
        batch = given.batch * given.gpus
        recipe = RECIPE.format(model=MODELS[given.model], steps=given.steps, batch=batch)
        (folder / "recipes/gpt.yaml").write_text(recipe)
        (folder / "runs.tsv").write_text(sheet(runs))
        config = folder / "config.yaml"
        config.write_text(CONFIG.format(folder=folder, gpus=given.gpus))
        for run in runs:
            run_dir = folder / "results/runs" / run
            launch = [sys.executable, "-m", "trainpkg", "launch", "train", "--config", str(config), "--run", run]
            done = subprocess.run([*launch, "--out", str(run_dir / "train.json")], capture_output=True, text=True)
            if done.returncode:
                print(f"{run}: ended with {done.returncode}: {done.stdout.strip().splitlines()[-1:]}", flush=True)
                continue
            found = told(run_dir, peak, given.gpus)
            print(
                f"{run:24} {found['tokens_per_second']:12,.0f} tokens/s  MFU {found['mfu']:6.1%}  "
                f"{found['memory_mb']:8,.0f} MB  loss {found['loss']:.4f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
