"""Model, data and task of the user's own, as docs/own-model.md has them: tried, trained, resumed, judged."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.distributed.start import records, run_ranks, start, weights
from trainpkg import contract, sheet
from trainpkg.config import Run
from trainpkg.errors import UserError

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-model.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.M | re.S))
RECIPE = yaml.safe_load(FILES["config/recipes/waves.yaml"])
SHORT = {"max_steps": 8, "global_batch": 24}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with the files of the page."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "config/runs.tsv").write_text("run\trecipe\nwaves\twaves\n")
    (folder / "config/config.yaml").write_text("launch: {device: cpu}\n")
    return folder


def trainpkg(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "trainpkg", *arguments],  # -P: as the console script, without the folder itself
        cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=env,
    )  # fmt: skip


def short(**changes: Any) -> Run:
    """The page's run, shorter."""
    tree = {"run": "waves", "recipe": "waves", **RECIPE, "train": SHORT, "checkpoint": {"every_steps": 4}}
    tree |= {"logging": {"every_steps": 2, "eval_every_steps": 8}, **changes}
    return Run.model_validate(tree | {"launch": {"device": "cpu"}})


def there(folder: Path) -> Any:
    """What ranks do first: they are in the user's folder."""
    return functools.partial(os.chdir, folder)


def test_the_page_s_run_is_checked_and_trained_on_two_nodes(project: Path) -> None:
    assert len([line for line in FILES["parts/model.py"].splitlines() if line.strip()]) <= 20
    checked = trainpkg(project, "check")
    assert checked.returncode == 0, checked.stderr
    assert "2x1-cpu-ddp-spawn-parts.model.Net-parts.data.waves-parts.task.Squares" in checked.stdout
    for stage, out in (
        ("smoke", "smoke/s.json"),
        ("train", "runs/waves/train.json"),
        ("evaluate", "runs/waves/evaluation.json"),
    ):
        done = trainpkg(project, "launch", stage, "--run", "waves", "--out", f"results/{out}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 of 2 ranks joined in" in done.stdout
    result = json.loads((project / "results/runs/waves/evaluation.json").read_text())
    assert result["num_samples"] == 101
    assert 0 < result["metrics"]["rmse"] < 0.5
    done = trainpkg(project, "export", "--run", "waves", "--out", "exported")
    assert done.returncode == 0, done.stderr
    exported = json.loads((project / "exported/config.json").read_text())
    assert exported["model"] == {"name": "parts.model:Net", "kwargs": {"width": 32}}
    (elsewhere,) = re.findall(r"^```python\n(from safetensors.*?)^```$", PAGE, re.M | re.S)
    code = elsewhere + "import sys\nassert 'trainpkg' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], cwd=project, check=True, timeout=300)


@pytest.mark.parametrize("name", ["parts.data:waves", "parts.stream:numbers"])
@pytest.mark.parametrize("workers", [0, 2])
def test_stopped_and_gone_on_is_as_never_stopped(project: Path, tmp_path: Path, name: str, workers: int) -> None:
    """Also where 2 ranks share what 3 epochs have: random samples, bit for bit."""
    run = short(data={"name": name, "kwargs": {"num_samples": 70}, "workers": workers})
    run_ranks(run, tmp_path / "whole", 2, before=there(project))
    ranks = start(run, tmp_path / "parts", 2, before=there(project))
    ranks.wait_for_step(5)
    for process in ranks.processes:
        os.kill(process.pid, 9)
    ranks.wait()
    run_ranks(run, tmp_path / "parts", 2, attempt=2, before=there(project))
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all((one[key] == other[key]).all() for key in one)
    assert records(tmp_path / "whole")[-1] == records(tmp_path / "parts")[-1]


@pytest.mark.parametrize("name", ["parts.data:waves", "parts.stream:numbers"])
def test_any_number_of_ranks_sees_the_same_samples(project: Path, tmp_path: Path, name: str) -> None:
    """70 and 37 or 101 samples, which neither batches nor ranks divide: none hangs, all count once."""
    found = []
    for num_ranks in (1, 2, 3):
        run = short(data={"name": name, "kwargs": {"num_samples": 70}}, evaluate={"batch": 8})
        run_ranks(run, tmp_path / str(num_ranks), num_ranks, before=there(project))
        lines = records(tmp_path / str(num_ranks))
        found.append([line["loss"] for line in lines if line["kind"] == "train"])
        found[-1] += [line["metrics"]["rmse"] for line in lines if line["kind"] == "eval"]
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[2] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize("strategy", ["fsdp"])
def test_with_other_strategies(project: Path, tmp_path: Path, strategy: str) -> None:
    run_ranks(short(strategy=strategy), tmp_path / "sharded", 2, before=there(project))
    run_ranks(short(), tmp_path / "whole", 1, before=there(project))
    one, other = weights(tmp_path / "sharded"), weights(tmp_path / "whole")
    assert one.keys() == other.keys()
    assert max((one[key] - other[key]).abs().max() for key in one) < 1e-4


BROKEN = """
import torch
from torch import nn
from parts.task import Squares
from parts.model import Net
class Wide(Net):
    def forward(self, x): return self.head(x)
class Frozen(nn.Module): pass
class Vector(Squares):
    def loss(self, model, batch): return model(batch[0]).squeeze(1)
class Sums(Squares):
    def sums(self, model, batch, is_real): return torch.ones(3)
class Count(Squares):
    def sums(self, model, batch, is_real): return torch.ones(2) * len(is_real)
class Nothing: pass
def one(num_samples): return [1, 2, 3]
def empty(num_samples): return [], [1]
def fails(): raise RuntimeError("no luck")
def once(num_samples): return iter([1]), iter([1])
"""
MISTAKES = {
    "model.name: parts.models:Net": "model.name = 'parts.models:Net': there is no module 'parts.models'",
    "model.name: parts.modle:Net": "; nearest module: parts.model",
    "model.name: parts.model:Nett": "has no 'Nett'; nearest name: 'Net'",
    "model.name: parts.model:NETT": "has no 'NETT'; nearest name: 'Net'",
    "model.name: parts.model:torch": "it is no class or function but module",
    "model.kwargs.widht: 3": "model.kwargs = {'widht': 3}: parts.model:Net(width: int = 64, depth: int = 2)",
    "model.name: broken:Frozen": "it has no parameter that could be trained",
    "model.name: broken:fails": "raised RuntimeError: no luck",
    "model.name: broken:Wide": "[2, 1] of float32], does not go through model and task",
    "task: broken:Vector": "loss gave a tensor [2] of float32",
    "task: broken:Nothing": "Nothing has no loss, sums, metrics, best_metric, best_mode, num_sums",
    "data.name: broken:one": "it gave list, wanted is a pair",
    "data.name: broken:empty": "the training samples (list) are none",
    "data.name: broken:once": "can be iterated once only",
    "task: Squares": "task = 'Squares': Value error, expected one of images, language, or package.module:name",
}


def test_what_is_not_as_agreed_is_named_before_a_job(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "broken.py").write_text(BROKEN)
    for number, mistake in enumerate(MISTAKES):
        tree = json.loads(json.dumps(RECIPE))
        for key, value in [mistake.split(": ", 1)]:
            *sections, leaf = key.split(".")
            place = tree
            for section in sections:
                place = place[section]
            if leaf == "name":
                place["kwargs"] = {} if value.endswith("fails") or sections == ["model"] else {"num_samples": 7}
            place[leaf] = value if leaf != "widht" else int(value)
        tree["model"]["kwargs"] = tree["model"].get("kwargs", {})
        if mistake.startswith("model.kwargs"):
            tree["model"]["kwargs"].pop("width")
        (project / f"config/recipes/wrong{number}.yaml").write_text(yaml.safe_dump(tree))
    rows = "".join(f"w{number}\twrong{number}\n" for number in range(len(MISTAKES) - 1))
    (project / "wrong.tsv").write_text("run\trecipe\n" + rows)
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(contract, "TIMEOUT_S", 600.0)
    with pytest.raises(UserError) as error:
        sheet.load({"sheet": "wrong.tsv", "launch": {"device": "cpu"}}, tried=contract.problems)
    lines = str(error.value).splitlines()
    for number, text in list(enumerate(MISTAKES.values()))[:-1]:
        line = next((line for line in lines if f"run 'w{number}'" in line), "")
        assert text in line, f"{list(MISTAKES)[number]}: {error.value}"
    with pytest.raises(ValueError, match="expected one of images, language"):
        short(task="Squares")


@pytest.mark.parametrize(
    ("task", "text"), [("Sums", "sums gave a tensor [3]"), ("Count", "task.sums counts 2 samples")]
)
def test_what_only_a_device_shows_is_named_by_the_smoke_test(
    project: Path, tmp_path: Path, task: str, text: str
) -> None:
    (project / "broken.py").write_text(BROKEN)
    ranks = run_ranks(short(task=f"broken:{task}"), tmp_path, 2, stage="smoke", expect=2, before=there(project))
    assert text in ranks.text()
