"""Write a results directory as thousands of finished runs leave it, and its sheet: what `benchmarks.tables` measures.

`python -m benchmarks.results_tree FOLDER [--runs 27270] [--records 100]` makes FOLDER/config.yaml, runs.tsv, recipes
and results. The numbers are invented, a fixed function of the run's place in the sheet; the files are those that a run
leaves which the tables read, less checkpoints, weights and logs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from functools import cache
from pathlib import Path

import yaml

from trainpkg import sheet

RECIPES = {
    "digits": "task: images\nmodel: {name: conv}\ndata: {name: digits}\ntrain: {max_steps: 1000, global_batch: 64}\n",
    "bytes": "task: language\nmodel: {name: gpt}\ndata: {name: python_text}\n"
    "train: {max_steps: 1000, global_batch: 32}\nslurm: {price_per_gpu_hour: 2.5, currency: EUR}\n",
}
NUM_SEEDS = 5
NUM_DIFFERENT = 10  # courses of a training with the same outcome
START_UNIX_S = 1_790_000_000.0


def row(number: int) -> dict[str, str]:
    """The sheet's row of a run: two recipes, rates and batches in a grid, five seeds of each."""
    point, seed = divmod(number, NUM_SEEDS)
    recipe = ("digits", "bytes")[point % 2]
    rate, nodes = 10 ** (-4 + 2 * (point % 97) / 97), 1 + point // 97 % 4
    return {
        "run": f"run{number:05d}", "recipe": recipe, "seed": str(seed), "optim.lr": f"{rate:.6f}",
        "launch.nodes": str(nodes), "launch.gpus_per_node": "2", "optim.weight_decay": f"{0.01 * (point // 388):g}",
    }  # fmt: skip


def write_sheet(folder: Path, num_runs: int) -> Path:
    """config.yaml, recipes and the sheet of the first `num_runs` runs; returns the config's path."""
    (folder / "recipes").mkdir(parents=True, exist_ok=True)
    for name, text in RECIPES.items():
        (folder / f"recipes/{name}.yaml").write_text(text)
    rows = [row(number) for number in range(num_runs)]
    lines = ["\t".join(rows[0]), *("\t".join(its.values()) for its in rows)]
    (folder / "runs.tsv").write_text("\n".join(lines) + "\n")
    places = {"results_dir": folder / "results", "sheet": folder / "runs.tsv", "recipes": folder / "recipes"}
    (folder / "config.yaml").write_text(yaml.safe_dump({key: str(path) for key, path in places.items()}))
    return folder / "config.yaml"


def write_runs(config: Path, first: int, num_records: int = 100) -> None:
    """The directories of the sheet's runs from the one in place `first` on."""
    loaded = sheet.load(config)
    for number, run in enumerate(loaded.runs.values()):
        if number >= first:
            fingerprint = run.fingerprint()
            parts = (run.tree() | {"fingerprint": fingerprint}).items()
            text = "".join(_section(key, json.dumps(value)) for key, value in parts)
            _write_run(loaded.results_dir / "runs" / run.run, number, text, fingerprint, num_records)


@cache
def _section(key: str, value: str) -> str:
    return str(yaml.safe_dump({key: json.loads(value)}, sort_keys=False))


def _write_run(path: Path, number: int, config: str, fingerprint: str, num_records: int) -> None:
    draw = random.Random(number)
    its = row(number)
    ranks = 2 * int(its["launch.nodes"])
    speed = 900.0 * ranks * draw.uniform(0.8, 1.0)
    floor = round(0.1 + abs(math.log10(float(its["optim.lr"])) + 3) + draw.uniform(0, 0.1), 1)
    tokens = 128 if its["recipe"] == "bytes" else None
    best = {"metric": "loss", "mode": "min", "value": floor + 0.02, "step": 1000}
    train = {
        "run": its["run"], "recipe": its["recipe"], "fingerprint": fingerprint, "status": "finished", "attempt": 1,
        "generation": 0, "world_size": ranks, "num_nodes": ranks // 2, "strategy": "ddp", "device": "cpu",
        "device_name": None, "steps": 10 * num_records, "samples": 640 * num_records, "time_s": 60.0,
        "train_time_s": 55.0, "num_parameters": 67754, "final": {"train_loss": floor, "loss": floor + 0.02},
        "best": best, "samples_per_second": speed, "tokens_per_second": tokens and speed * tokens, "memory_mb": 310.5,
    }  # fmt: skip
    start = START_UNIX_S + 90.0 * number
    attempt = {
        "stage": "train", "attempt": 1, "slurm_job_id": str(100_000 + number), "restarts": 0, "host": f"n{number % 64}",
        "start": start, "end": start + 75.0, "saved_before": None, "counts_steps": True, "verdict": "finished",
        "status": 0, "cause": None, "run_again": True, "step_first": 1, "step_last": 10 * num_records,
        "saved_after": 10 * num_records, "generations": 1, "failure": None,
    }  # fmt: skip
    nodes = [
        {"host": f"n{index}", "index": index, "rank_offset": 2 * index, "num_ranks": 2} for index in range(ranks // 2)
    ]
    evaluation = {
        "run": its["run"], "fingerprint": fingerprint, "step": 10 * num_records, "checkpoint": "step-1000",
        "num_samples": 360, "metrics": {"loss": floor + 0.02, "accuracy": 1 / (1 + floor)},
    }  # fmt: skip
    (path / "launch/1/0").mkdir(parents=True)
    (path / "config.yaml").write_text(config)
    (path / "metrics.jsonl").write_text(_metrics(number % NUM_DIFFERENT, floor, ranks, tokens, num_records))
    (path / "train.json").write_text(json.dumps(train, indent=1) + "\n")
    os.link(path / "train.json", path / "finished.json")  # a copy as far as readers are concerned
    (path / "evaluation.json").write_text(json.dumps(evaluation, indent=1) + "\n")
    (path / "launch/1/attempt.json").write_text(json.dumps(attempt, indent=1) + "\n")
    (path / "launch/1/0/plan.json").write_text(json.dumps({"world_size": ranks, "nodes": nodes, "device": "cpu"}))


@cache
def _metrics(kind: int, floor: float, ranks: int, tokens: int | None, num_records: int) -> str:
    draw = random.Random(kind)
    speed = 900.0 * ranks * draw.uniform(0.8, 1.0)
    lines = [_record(draw, 10 * (index + 1), floor, speed, tokens) for index in range(num_records)]
    return "".join([*lines, _evaluation(10 * num_records, floor)])


def _record(draw: random.Random, step: int, floor: float, speed: float, tokens: int | None) -> str:
    loss = floor + 2.3 * math.exp(-step / 150) * draw.uniform(0.9, 1.1)
    samples_per_second = speed * draw.uniform(0.97, 1.03)
    its = {
        "kind": "train", "attempt": 1, "generation": 0, "step": step, "samples": 64 * step,
        "tokens": tokens and 64 * step * tokens, "time_s": step * 0.06 * draw.uniform(0.999, 1.001), "loss": loss,
        "lr": 0.0029931229306408157 * draw.random(), "grad_norm": draw.uniform(0.5, 3), "samples_per_second":
        samples_per_second, "tokens_per_second": tokens and samples_per_second * tokens, "step_time_s":
        64 / samples_per_second, "data_time_s": draw.uniform(1e-4, 6e-4), "memory_mb": 297.783296, "epoch": step / 22.5,
    }  # fmt: skip
    return json.dumps(its) + "\n"


def _evaluation(step: int, floor: float) -> str:
    its = {
        "kind": "eval", "attempt": 1, "generation": 0, "step": step, "samples": 64 * step, "time_s": step * 0.06,
        "metrics": {"loss": floor + 0.02, "accuracy": 1 / (1 + floor), "num_samples": 360},
    }  # fmt: skip
    return json.dumps(its) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=27_270)
    parser.add_argument("--records", type=int, default=100)
    options = parser.parse_args()
    write_runs(write_sheet(options.folder, options.runs), 0, options.records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
