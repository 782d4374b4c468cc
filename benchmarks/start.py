"""How long from the command to the first training step on all ranks: `launch` beside torchrun.

`python -m benchmarks.start [--ranks 4] [--rounds 5]` interleaves the ways on one machine, prints each round's seconds
and the ratios of the medians. `torchrun` starts the same trainer, `torchrun-tiny` a script that imports nothing but
torch. The first step is over on all ranks when rank 0 has done it, since it contains a collective of all; its record
in metrics.jsonl or a line says so, as a line says that all have joined. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """\
results_dir: {folder}/results
sheet: {folder}/runs.tsv
recipes: {folder}/recipes
launch: {{where: local, nodes: 1, gpus_per_node: {ranks}, device: cpu}}
logging: {{every_steps: 1, eval_every_steps: 1000}}
checkpoint: {{every_steps: 1000}}
"""
RECIPE = """\
task: images
model: {name: conv}
data: {name: digits}
optim: {lr: 1e-3}
train: {max_steps: 1, global_batch: 96}
"""
LIMIT_S = 120.0
JOINED, STEPPED = "ranks joined", "step 1 of"
WAYS = ("launch", "torchrun", "torchrun-tiny")


def project(folder: Path, ranks: int) -> Path:
    """A config of one run in that folder."""
    (folder / "recipes").mkdir(parents=True)
    (folder / "recipes" / "digits.yaml").write_text(RECIPE)
    (folder / "runs.tsv").write_text("run\trecipe\nstart\tdigits\n")
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder, ranks=ranks))
    return folder / "config.yaml"


def commands(config: Path, ranks: int) -> dict[str, list[str]]:
    """The ways that are compared."""
    run = ["--config", str(config), "--run", "start", "--out", str(config.parent / "results/runs/start/train.json")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    port = 20_000 + os.getpid() % 10_000
    return {
        "launch": [sys.executable, "-m", "trainpkg", "launch", "train", *run],
        "torchrun-tiny": [*torchrun, f"--master-port={port}", str(Path(__file__).with_name("tiny_ddp.py")), "1"],
        "torchrun": [
            *torchrun,
            "--master-addr=127.0.0.1",
            f"--master-port={port}",
            "-m",
            "--",
            "trainpkg",
            "train",
            *run,
        ],
    }


def measure(command: list[str], folder: Path) -> tuple[float, float, float]:
    """Seconds to the first all-reduce on all ranks, to the first step on all ranks, and to the end of the command."""
    metrics, log = folder / "results/runs/start/metrics.jsonl", folder / "log"
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | {"OMP_NUM_THREADS": "1"}
    first = joined = 0.0
    begin = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)
        while process.poll() is None and time.monotonic() - begin < LIMIT_S:
            said = log.read_text()
            if not joined and JOINED in said:
                joined = time.monotonic() - begin
            if not first and (STEPPED in said or (metrics.is_file() and metrics.stat().st_size)):
                first = time.monotonic() - begin
            time.sleep(0.005)
        process.kill()
        if process.wait() != 0:
            raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}:\n{log.read_text()[-2000:]}")
    return joined, first, time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description="Start-up of launch beside torchrun, interleaved.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    seconds: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(args.rounds + 1):  # the first round fills the caches and is not counted
        for name in WAYS:
            folder = Path(tempfile.mkdtemp(prefix="start-"))
            try:
                found = measure(commands(project(folder, args.ranks), args.ranks)[name], folder)
            finally:
                shutil.rmtree(folder)
            told = f"all-reduce {found[0]:5.2f} s  step {found[1]:5.2f} s  end {found[2]:5.2f} s"
            print(f"round {number} {name:13s} {told}", flush=True)
            if number:
                seconds.setdefault(name, []).append(found)
    for index, what in enumerate(("first all-reduce", "first step", "end")):
        medians = {name: statistics.median(row[index] for row in rows) for name, rows in seconds.items()}
        ratios = [f"{medians['launch'] / medians[name]:.2f} of {name}" for name in WAYS[1:]]
        print(f"{what}: " + ", ".join(f"{name} {value:.2f} s" for name, value in medians.items())
              + f"; launch takes {', '.join(ratios)}")  # fmt: skip


if __name__ == "__main__":
    main()
