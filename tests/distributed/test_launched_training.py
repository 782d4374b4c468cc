"""The trainer under the real launcher: forked and exec'd ranks, two simulated nodes, a kill and a restart in place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.distributed.start import TINY, weights

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def start_launch(folder: Path, out: Path, stage: str, max_steps: int = 200, **launch: Any) -> subprocess.Popen[str]:
    """`trainpkg launch` of the tiny digits run, in a config of its own below `folder`."""
    recipe = {key: value for key, value in TINY["digits"].items() if key not in ("run", "recipe")}
    recipe["train"] = {"max_steps": max_steps, "global_batch": 48}
    recipe["checkpoint"] = {"every_steps": 20}
    recipe["logging"] = {"every_steps": 10, "eval_every_steps": max_steps}
    recipe["launch"] = {"where": "local", "device": "cpu", "nodes": 2, "gpus_per_node": 1, **launch}
    (folder / "recipes").mkdir(parents=True, exist_ok=True)
    (folder / "recipes" / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "runs.tsv").write_text("run\trecipe\ndigits\ttiny\n")
    tree = {"results_dir": str(folder / "results"), "sheet": str(folder / "runs.tsv")}
    (folder / "config.yaml").write_text(yaml.safe_dump({**tree, "recipes": str(folder / "recipes")}))
    command = [sys.executable, "-m", "trainpkg", "launch", stage, "--config", str(folder / "config.yaml")]
    command += ["--run", "digits", "--out", str(out)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    own["OMP_NUM_THREADS"] = "1"
    return subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def process_of_rank(run_dir: Path, rank: int, generation: int = 0) -> int:
    """The process whose output is the rank's log."""
    log = str(run_dir / "launch" / "1" / str(generation) / f"rank-{rank}.log")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str((entry / "fd" / "1").readlink()) == log:
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError(f"no process writes {log}")


def wait_for_record(run_dir: Path, step: int) -> None:
    end = time.monotonic() + 60
    path = run_dir / "metrics.jsonl"
    while f'"step": {step},' not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < end, f"step {step} not reached"
        time.sleep(0.02)


def test_killed_rank_restarts_in_place_with_the_same_result(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_dirs = {folder: folder / "results" / "runs" / "digits" for folder in (whole, killed)}
    launch = start_launch(whole, run_dirs[whole] / "train.json", "train", start="exec")
    text, _ = launch.communicate(timeout=90)
    assert launch.returncode == 0, text
    launch = start_launch(killed, run_dirs[killed] / "train.json", "train")
    wait_for_record(run_dirs[killed], 50)
    os.kill(process_of_rank(run_dirs[killed], 1), signal.SIGKILL)
    text, _ = launch.communicate(timeout=90)
    assert launch.returncode == 0, text
    result = json.loads((run_dirs[killed] / "train.json").read_text())
    assert (result["attempt"], result["generation"], result["steps"]) == (1, 1, 200)
    assert result["hosts"] == ["sim0", "sim1"] and result["gpus_per_node"] == [1, 1]
    one, other = weights(run_dirs[killed]), weights(run_dirs[whole])
    assert all(torch.equal(one[name], other[name]) for name in other)
    log = (run_dirs[killed] / "launch" / "1" / "1" / "rank-0.log").read_text()
    assert "goes on from step-" in log and "distributed init (rank 0 of 2): tcp://" in log
    assert "others reach it at 127.0.0.1" in log


@pytest.mark.long  # test_own_parts.py goes the same way with parts of one's own, the workflow's demo with ours
def test_smoke_train_evaluate(tmp_path: Path) -> None:
    run_dir = tmp_path / "results" / "runs" / "digits"
    outs = {"smoke": tmp_path / "results" / "smoke" / "t.json", "train": run_dir / "train.json"}
    for stage, out in {**outs, "evaluate": run_dir / "evaluation.json"}.items():
        launch = start_launch(tmp_path, out, stage)
        text, _ = launch.communicate(timeout=90)
        assert launch.returncode == 0 and out.exists(), text
        assert "2 of 2 ranks joined in" in text
    assert json.loads((run_dir / "evaluation.json").read_text())["metrics"]["accuracy"] > 0.9


TORCHRUN = (
    "{python} -m torch.distributed.run --nnodes={num_nodes} --nproc-per-node={gpus_per_node} --node-rank={node_rank} "
    "--rdzv-backend=static --master-addr={master_addr} --master-port={master_port} {entry}"
)


@pytest.mark.long  # each backend has another test of its weights: cluster/test_backends.py, test_own_programs.py
def test_two_nodes_of_two_ranks_come_to_the_same_weights_however_they_start(tmp_path: Path) -> None:
    """One process group, one loop: who started the ranks makes no difference, to the last bit."""
    backends: dict[str, dict[str, Any]] = {
        "spawn": {},
        "torchrun": {"backend": "torchrun"},
        "command": {"backend": "command", "command": TORCHRUN},
    }
    found = {}
    for name, keys in backends.items():
        run_dir = tmp_path / name / "results" / "runs" / "digits"
        launch = start_launch(tmp_path / name, run_dir / "train.json", "train", 30, gpus_per_node=2, **keys)
        text, _ = launch.communicate(timeout=150)
        assert launch.returncode == 0, f"{name}: {text}"
        assert "4 of 4 ranks joined in" in text
        found[name] = weights(run_dir)
        result = json.loads((run_dir / "train.json").read_text())
        assert (result["world_size"], result["num_nodes"], result["status"]) == (4, 2, "finished")
    for name, one in found.items():
        assert all(torch.equal(one[key], found["spawn"][key]) for key in one), name
