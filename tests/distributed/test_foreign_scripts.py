"""Training scripts of other houses, as their recipes name them: each on two ranks, on two nodes of this machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.launching import ROOT
from trainpkg.tables.files.records import parse

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]
# recipe -> what it imports, and the steps that it does
SCRIPTS = {
    "script_ddp": ((), 24),
    "script_lightning": (("lightning",), 24),
    "script_accelerate": (("accelerate",), 24),
    "script_hf_trainer": (("transformers", "accelerate"), 24),
}


@pytest.mark.parametrize("recipe", SCRIPTS)
def test_a_script_runs_as_its_recipe_says(tmp_path: Path, recipe: str) -> None:
    modules, steps = SCRIPTS[recipe]
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    sheet = tmp_path / "runs.tsv"
    sheet.write_text(f"run\trecipe\nit\t{recipe}\n")
    config = json.dumps({"sheet": str(sheet), "launch": {"max_restarts": 0, "start_timeout_s": 300}})
    out = tmp_path / "results/runs/it/train.json"
    out.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "trainpkg", "launch", "train", "--config-json", config, "--run", "it"]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text())
    assert (told["status"], told["world_size"]) == ("finished", 2)
    assert all(size > 0 for size in told["output_bytes"].values()) and told["output_bytes"]
    records = parse((out.parent / "metrics.jsonl").read_bytes())
    assert records.column("step")[-1] == steps, "each rank has half of the data"
    assert records.column("loss")[-1] < records.column("loss")[0] / 2
    assert records.num_bad == 0
    if recipe == "script_hf_trainer":  # it says its last evaluation and its totals at the same step
        assert {"loss", "train_runtime"} <= records.evals[-1].metrics.keys()
        assert records.evals[-1].step == steps
