"""Trackers: real packages write real files without a network, and a run that goes on is one run in each."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainpkg import sheet
from trainpkg.errors import UserError
from trainpkg.runtime import trackers
from trainpkg.runtime.trackers import NoTracker, Several, numbers

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """\
task: images
model: {name: conv, width: 8}
data: {name: digits}
train: {max_steps: 40, global_batch: 8}
launch: {device: cpu}
"""
NO_NETWORK = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up; exec "$0" "$@"']
# The overlap of two attempts: TensorBoard hides what was taken back, the others keep both, the newer one last.
BOTH = [[10, 3.0], [20, 2.0], [30, 9.0], [30, 1.5], [40, 1.0]]
KEPT = {"tensorboard": [BOTH[0], BOTH[1], BOTH[3], BOTH[4]], "mlflow": BOTH, "wandb": BOTH, "trackio": BOTH}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`config` of a run `a` in an empty directory; its recipe."""
    monkeypatch.chdir(tmp_path)
    Path("config/recipes").mkdir(parents=True)
    Path("config/runs.tsv").write_text("run\trecipe\na\tr\n")
    recipe = Path("config/recipes/r.yaml")
    recipe.write_text(RECIPE)
    return recipe


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_two_attempts_are_one_run(name: str, config: Path) -> None:
    if importlib.util.find_spec(trackers.TRACKERS[name][1]) is None:
        pytest.skip(f"no {name} here: pip install 'trainpkg[{name}]'")
    config.write_text(f"{RECIPE}logging: {{trackers: [{name}]}}\n")
    script = [sys.executable, str(ROOT / "tests/unit/tracked.py"), name]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "MLFLOW", "TRACKIO"))}
    env |= {"PYTHONPATH": str(ROOT), "HOME": str(Path.cwd())}
    for attempt in ("1", "2"):
        done = subprocess.run(
            [*NO_NETWORK, *script, attempt], env=env, capture_output=True, text=True, timeout=110, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    runs, losses = json.loads(done.stdout.splitlines()[-1])
    assert runs == ["a"]
    assert losses == KEPT[name]
    written = {path.relative_to(Path.cwd()).parts[:2] for path in Path.cwd().rglob("*") if path.is_file()}
    assert {parts for parts in written if parts[0] not in ("config", ".cache", ".config")} <= {
        ("results", "runs"), ("results", "mlruns"),
    }, "nothing is written elsewhere"  # fmt: skip


def context(**changes: Any) -> Any:
    return SimpleNamespace(**{"is_main": True, "warn": pytest.fail, **changes})


def test_nobody_is_told_unless_asked_for(config: Path) -> None:
    run = sheet.load({}).runs["a"]
    assert isinstance(trackers.build(context(), run, Path("results/runs/a")), NoTracker)
    config.write_text(RECIPE + "logging: {trackers: [tensorboard]}\n")
    run = sheet.load({}).runs["a"]
    assert isinstance(trackers.build(context(is_main=False), run, Path()), NoTracker), "one rank writes"
    assert not Path("results").exists()


def test_a_package_that_is_missing_is_named_at_the_start(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text(RECIPE + "logging: {trackers: [wandb]}\n")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"logging.trackers names 'wandb'.*pip install 'trainpkg\[wandb\]'"):
        trackers.build(context(), sheet.load({}).runs["a"], Path())


class Broken(NoTracker):
    """Raises whenever it is told something."""

    def metrics(self, step: int, values: Any) -> None:
        raise OSError("disk full")


class Listener(NoTracker):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def metrics(self, step: int, values: Any) -> None:
        self.told.append((step, values))

    def close(self, verdict: str) -> None:
        self.told.append(verdict)


def test_a_tracker_that_fails_is_told_no_more_and_the_others_are() -> None:
    warnings: list[str] = []
    listener = Listener()
    several = Several({"bad": Broken(), "good": listener}, warnings.append)
    several.metrics(1, {"train/loss": 1.0})
    several.metrics(2, {"train/loss": 0.5})
    several.close("again")
    assert warnings == ["tracker bad is told no more: OSError: disk full"]
    assert listener.told == [(1, {"train/loss": 1.0}), (2, {"train/loss": 0.5}), "again"]


def test_the_numbers_of_a_record() -> None:
    train = {"kind": "train", "attempt": 1, "generation": 0, "step": 5, "loss": None, "lr": 1, "note": "loss is nan"}
    assert numbers({**train, "layers": {"blocks.0": {"grad_norm": 0.5}}}) == {
        "train/lr": 1.0, "train/layers/blocks.0/grad_norm": 0.5,
    }  # fmt: skip
    assert numbers({"kind": "eval", "step": 5, "samples": 40, "metrics": {"accuracy": 0.5, "loss": None}}) == {
        "eval/samples": 40.0, "eval/accuracy": 0.5,
    }  # fmt: skip
