"""The workflow on this machine, for real: the demo as README promises it, and a sheet of which one run fails."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from tests.distributed.test_own_programs import BY_HAND, SCRIPT
from tests.workflow.conftest import ROOT, Snakemake
from tests.workflow.test_dry_runs import jobs

TINY = """\
task: images
model: {name: vit, dim: 16, depth: 1, heads: 2, patch: 2}
data: {name: digits}
train: {max_steps: 12, global_batch: 8}
launch: {device: cpu, max_restarts: 0}
logging: {every_steps: 4}
"""


def table(checkout: Path, results: str = "results") -> dict[str, dict[str, str]]:
    with (checkout / results / "tables/runs.csv").open() as lines:
        return {row["run"]: row for row in csv.DictReader(lines)}


@pytest.mark.timeout(900)
def test_the_demo_and_its_numbers(snakemake: Snakemake, checkout: Path) -> None:
    snakemake("smoke_test", timeout=300)
    assert len(list((checkout / "results/smoke").glob("*.json"))) == 2
    snakemake(timeout=600)
    rows = table(checkout)
    assert {row["status"] for row in rows.values()} == {"finished"}
    assert float(rows["digits"]["eval_accuracy"]) > 0.95
    loss, unigram = (float(rows["gpt"][f"eval_{name}"]) for name in ("loss_nats_per_byte", "unigram_nats_per_byte"))
    assert loss < 0.8 * unigram
    for name in ("loss_over_steps", "loss_over_time", "throughput_over_world_size"):
        assert "<svg" in (checkout / f"results/plots/{name}.svg").read_text()[:2000]
    again = snakemake()
    assert "Nothing to be done" in again.stdout + again.stderr
    snakemake("--report", "report.html")
    report = (checkout / "report.html").read_text()
    assert "loss_over_steps.svg" in report
    assert "runs.csv" in report


@pytest.mark.timeout(600)
def test_one_of_three_runs_fails_and_the_tables_are_there_all_the_same(
    snakemake: Snakemake, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # none, also on a machine that has some
    (checkout / "config/recipes/tiny.yaml").write_text(TINY)
    sheet = "run\trecipe\tlaunch.device\na\ttiny\t\nb\ttiny\tcuda\nc\ttiny\t\n"
    (checkout / "config/runs.tsv").write_text(sheet)
    monkeypatch.setenv("WHERE", "my results")  # a variable and a blank: every rule must mean the same folder
    (checkout / "config/config.yaml").write_text("results_dir: $WHERE/here\n")
    results = "my results/here"
    (checkout / results / "smoke").mkdir(parents=True)
    for topology in ("1xall-cpu-single-spawn", "1xall-cuda-ddp-spawn"):
        (checkout / results / f"smoke/{topology}.json").write_text("{}")  # the demo runs real ones
    done = snakemake(status=1, timeout=280)
    assert "0 GPUs are visible" in done.stdout + done.stderr, "the cause is on the screen"
    rows = table(checkout, results)
    assert {run: row["status"] for run, row in rows.items()} == {"a": "finished", "b": "failed", "c": "finished"}
    assert rows["a"]["eval_accuracy"]
    files = [path for path in (checkout / results / "runs/a").rglob("*") if path.is_file()]
    assert len(files) <= 28, "docs/many-runs.md tells how many files a run leaves, times thousands of runs"
    assert "0 GPUs are visible" in rows["b"]["cause"]
    (checkout / "config/runs.tsv").write_text(sheet.replace("cuda", "cpu"))
    snakemake(timeout=280)
    assert {row["status"] for row in table(checkout, results).values()} == {"finished"}, "the failed run is made up for"
    chosen = "run\trecipe\tevaluate.checkpoint\tevaluate.weights\na\ttiny\t12\t\nb\ttiny\t\traw\nc\ttiny\t\t\n"
    (checkout / "config/runs.tsv").write_text(chosen)
    planned = jobs(snakemake("-n").stdout)
    assert planned == {"evaluate": 2, "summarise": 1, "all": 1, "total": 4}, "of these runs, and nothing is trained"


@pytest.mark.timeout(600)
def test_a_script_of_ones_own_goes_the_whole_way_on_torchrun_and_by_a_command(
    snakemake: Snakemake, checkout: Path
) -> None:
    """Smoke test (ours, through the same backend), training (the script's), tables; there is nothing to evaluate."""
    shutil.copy(ROOT / SCRIPT, checkout / "own train.py")
    backends = {"torchrun": "backend: torchrun", "command": f"backend: command, command: {json.dumps(BY_HAND % '')}"}
    for name, backend in backends.items():
        recipe = f"entry: {{script: own train.py, args: [weights-{name}, '10', '{{rank}}']}}\n"
        recipe += f"launch: {{device: cpu, gpus_per_node: 2, max_restarts: 0, {backend}}}\n"
        (checkout / f"config/recipes/{name}.yaml").write_text(recipe)
    (checkout / "config/runs.tsv").write_text("run\trecipe\na\ttorchrun\nb\tcommand\n")
    (checkout / "config/config.yaml").write_text("checkpoint: {keep_last: 3}\n")
    (checkout / "results/smoke").mkdir(parents=True)
    (checkout / "results/smoke/1x2-cpu-own-torchrun.json").write_text("{}")  # one of the two smoke tests is enough
    snakemake(timeout=560)
    rows = table(checkout)
    assert {run: (row["status"], row["world_size"]) for run, row in rows.items()} == {
        "a": ("finished", "2"),
        "b": ("finished", "2"),
    }
    weights = [json.loads((checkout / f"weights-{name}").read_text())["hash"] for name in backends]
    assert weights[0] == weights[1]
    assert (checkout / "results/smoke/1x2-cpu-own-command.json").exists()
    assert "rank 1 of 2: ['1']" in (checkout / "results/runs/b/launch/1/0/rank-1.log").read_text()
    assert not list((checkout / "results/runs").glob("*/evaluation.json"))
    again = snakemake()
    assert "Nothing to be done" in again.stdout + again.stderr
