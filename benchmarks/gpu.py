"""The GPT on the GPUs of this machine, with throughput, memory and MFU.

As a part of `make bench`: on one GPU, bf16 and compiled, beside a plain loop (peers/plain_gpu.py). With
`python -m benchmarks.gpu [--gpus N] [--model small|124m|1b] [--steps 60]`: every strategy, one run per line, through
`launch` (nccl), as medians of the later half of the records, with losses beside those of one process. Without a GPU it
says so and ends with 2. MFU: 6 x parameters x tokens per second, as in the appendix of https://arxiv.org/abs/2204.02311
without its attention term, over the peak of --peak-tflops (dense bf16; by name below).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.commands import ROOT, Unsuccessful, folder, output_of, python
from benchmarks.harness import Figure, Part, Plot, Row, Scale, interleaved

# dense bf16, without sparsity, from NVIDIA's data sheets
PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "A10": 125.0, "V100": 125.0}
MODELS = {
    "small": "{name: gpt, dim: 256, depth: 4, heads: 4, context: 256}",
    "124m": "{name: gpt, dim: 768, depth: 12, heads: 12, context: 1024}",
    "1b": "{name: gpt, dim: 2048, depth: 20, heads: 16, context: 1024}",
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


def peak_tflops() -> float | None:
    """Of this machine's first GPU, where its name is known."""
    words = torch.cuda.get_device_name(0).replace("-", " ").split() if torch.cuda.device_count() else []
    return next((peak for word, peak in PEAK_TFLOPS.items() if word in words), None)


def project(place: Path, model: str, steps: int, batch: int, gpus: int, runs: dict[str, dict[str, str]]) -> Path:
    """The config of these runs in that folder."""
    (place / "recipes").mkdir()
    (place / "recipes/gpt.yaml").write_text(RECIPE.format(model=MODELS[model], steps=steps, batch=batch))
    (place / "runs.tsv").write_text(sheet(runs))
    config = place / "config.yaml"
    config.write_text(CONFIG.format(folder=place, gpus=gpus))
    return config


def train(config: Path, run: str) -> Path:
    """Its directory; Unsuccessful where it does not finish."""
    run_dir = config.parent / "results/runs" / run
    launch = [sys.executable, "-m", "trainpkg", "launch", "train", "--config", str(config), "--run", run]
    done = subprocess.run([*launch, "--out", str(run_dir / "train.json")], capture_output=True, text=True)
    if done.returncode:
        raise Unsuccessful(f"ended with {done.returncode}: {done.stdout.strip().splitlines()[-1:]}")
    return run_dir


def ours(model: str, batch: int, steps: int) -> Mapping[str, float]:
    runs = {"gpt": {"strategy": "single", "train.precision": "bf16", "train.compile": "true"}}
    with folder() as place:
        found = told(train(project(place, model, steps, batch, 1, runs), "gpt"), peak_tflops() or 1.0, 1)
    return {"tokens_per_s": found["tokens_per_second"], "mfu": found["mfu"], "memory_mb": found["memory_mb"]}


def plain(model: str, batch: int, steps: int) -> Mapping[str, float]:
    keys = json.dumps(yaml.safe_load(MODELS[model]))
    text = output_of(python(str(ROOT / "benchmarks/peers/plain_gpu.py"), keys, str(batch), str(steps)))
    found = json.loads(text.strip().splitlines()[-1])
    mfu = 6 * found.pop("num_parameters") * found["tokens_per_s"] / ((peak_tflops() or 1.0) * 1e12)
    return {"tokens_per_s": found["tokens_per_s"], "memory_mb": found["memory_mb"], "mfu": mfu}


def measure(scale: Scale) -> Iterator[Row]:
    steps = 40 if scale.tiny else 120
    for model, batch in (("small", 8),) if scale.tiny else (("124m", 32), ("1b", 8)):
        ways = {"ours": partial(ours, model, batch, steps), "plain loop": partial(plain, model, batch, steps)}
        yield from interleaved(f"{model}, batch {batch}", ways, scale.repetitions, warm_up=False)


def needs(scale: Scale) -> str | None:
    if not torch.cuda.device_count():
        return "there is no GPU here"
    return None if peak_tflops() else f"the peak of {torch.cuda.get_device_name(0)} is not known here"


PART = Part(
    "gpu",
    "GPT on one GPU, bf16, compiled",
    "at least the plain loop; MFU stated",
    "ours",
    (
        Figure("tokens_per_s", "tokens per second", "1/s", "more"),
        Figure("mfu", "MFU", "", None),
        Figure("memory_mb", "peak memory", "MB", None),
    ),
    measure,
    (Plot("bars", "tokens_per_s", "plain loop"),),
    needs,
)


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
    name, peak = torch.cuda.get_device_name(0), given.peak_tflops or peak_tflops()
    if peak is None:
        print(f"the peak of {name} is not known here: give --peak-tflops", file=sys.stderr)
        return 2
    print(f"{given.gpus} x {name}, peak {peak:g} TFLOP/s, torch {torch.__version__}, model {given.model}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-") as place:
        runs = variants(given.gpus)
        config = project(Path(place), given.model, given.steps, given.batch * given.gpus, given.gpus, runs)
        for run in runs:
            try:
                found = told(train(config, run), peak, given.gpus)
            except Unsuccessful as error:
                print(f"{run}: {error}", flush=True)
                continue
            print(
                f"{run:24} {found['tokens_per_second']:12,.0f} tokens/s  MFU {found['mfu']:6.1%}  "
                f"{found['memory_mb']:8,.0f} MB  loss {found['loss']:.4f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
