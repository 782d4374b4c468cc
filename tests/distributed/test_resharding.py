"""What was saved on any number of ranks under any strategy is what is loaded on any other, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.distributed.start import config, run_ranks
from trainpkg.config import Run

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

# fp16: its scaler has a state; momentum 0: that optimizer keeps nothing
SAVED: dict[str, dict[str, Any]] = {
    "adamw-fsdp": {"strategy": "fsdp", "ema__decay": 0.9},
    "adamw-hsdp": {"strategy": "hsdp", "ema__decay": 0.9, "train__precision": "fp16"},
    "muon-fsdp": {"strategy": "fsdp", "optim__name": "muon"},
    "sgd-ddp": {"strategy": "ddp", "optim__name": "sgd", "optim__momentum": 0.9},
    "plain-sgd-fsdp": {"strategy": "fsdp", "optim__name": "sgd", "optim__momentum": 0.0},
}


def be_saver() -> None:
    """Instead of training: make each cell of `cells.json`, save or resume it, and write everything whole."""
    from tests.distributed.many import be_many
    from trainpkg.runtime import rank

    be_many()  # cells read their data once
    rank.STAGES["train"] = __name__


def main(ctx: Any, run: Run, spec: Any) -> str:
    """As a stage's. A cell is {run (where its checkpoints are), config, steps: 0 to resume}."""
    from trainpkg import train
    from trainpkg.errors import UserError
    from trainpkg.runtime.checkpoints import tensors

    run_dir = Path(spec["run_dir"])
    said = {}
    for name, cell in json.loads((run_dir / "cells.json").read_text()).items():
        training = train.prepare(ctx, config("gpt", **cell["config"]), run_dir / cell["run"])
        checkpoints = training.checkpoints
        try:
            said[name] = checkpoints.resume()
        except UserError as error:
            said[name] = str(error)
        for _ in range(cell["steps"]):
            train_one(training)
        if cell["steps"]:
            checkpoints.save(training.state.step)
        whole = tensors.whole(checkpoints._parts())
        whole |= {f"update.{key}": torch.tensor(value) for key, value in training.update.state().items()}
        if ctx.is_main:
            save_file(whole, run_dir / f"{name}.safetensors")
        training.records.close()
    if ctx.is_main:
        (run_dir / "said.json").write_text(json.dumps(said))
    return "finished"


def train_one(training: Any) -> None:
    """One step on whatever batch."""
    t = training
    t.update.begin(t.state.step)
    for last, _, batch in t.feed.step(t.state.samples):
        with t.strategy.accumulating(last):
            with t.strategy.autocast():
                loss = t.task.loss(t.strategy.model, batch)
            t.update.scaled(loss).backward()
    t.update.step(t.state.step + 1, loss)
    t.state.advance(t.run.train.global_batch, None)


def live(place: Path, cells: dict[str, dict[str, Any]], num_ranks: int, nodes: list[int] | None = None) -> Any:
    place.mkdir(exist_ok=True)
    for cell in cells.values():
        (place / cell["run"]).mkdir(exist_ok=True)
    (place / "cells.json").write_text(json.dumps(cells))
    run_ranks(config("gpt"), place, num_ranks, before=be_saver, nodes=nodes, timeout_s=150)
    return json.loads((place / "said.json").read_text())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved")
    cells = {name: {"run": name, "config": keys, "steps": 2} for name, keys in SAVED.items()}
    live(place, cells, 4, [2, 2])
    return place


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_saved_on_four_ranks_is_loaded_on_fewer(saved: Path, num_ranks: int) -> None:
    cells = {}
    for name, keys in SAVED.items():
        for strategy in ("ddp", "fsdp") if num_ranks == 2 else ("single",):
            cells[f"{name}-{strategy}"] = {"run": name, "config": {**keys, "strategy": strategy}, "steps": 0}
    said = live(saved, cells, num_ranks)
    for name, cell in cells.items():
        assert said[name] == "goes on from step-00000002"
        one, other = load_file(saved / f"{cell['run']}.safetensors"), load_file(saved / f"{name}.safetensors")
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == []
    kept = {name: {key.rsplit(".", 1)[1] for key in load_file(saved / f"{name}.safetensors") if "optimizer." in key}
            for name in SAVED}  # fmt: skip
    adamw = {"step", "exp_avg", "exp_avg_sq"}
    assert list(kept.values()) == [adamw, adamw, adamw | {"momentum_buffer"}, {"momentum_buffer"}, set()]
    scaled = load_file(saved / "adamw-hsdp.safetensors")
    assert scaled["update.scale"] > 1 and any(not torch.equal(scaled[key], scaled["model." + key.removeprefix("ema.")])
                                              for key in scaled if key.startswith("ema."))  # fmt: skip


def test_a_run_begins_with_the_weights_of_another(saved: Path, tmp_path: Path) -> None:
    source = saved / "adamw-fsdp" / "checkpoints" / "step-00000002"
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(saved / "adamw-fsdp.safetensors").items()
        if name.startswith("model.")
    }
    folder, other, damaged = tmp_path / "folder", tmp_path / "other", tmp_path / "damaged"
    folder.mkdir()
    other.mkdir()
    save_file(weights, folder / "model.safetensors")
    names = sorted(weights)
    save_file({**{name: weights[name] for name in names[2:]}, names[1]: torch.zeros(1, 2), "new.weight": torch.ones(1)},
              other / "model.safetensors")  # fmt: skip
    shutil.copytree(source, damaged)
    (damaged / "rank-00000.safetensors").write_bytes(b"")
    begins = {"checkpoint": source, "folder": folder, "other": other, "damaged": damaged, "missing": tmp_path / "none"}
    begins |= {"empty": tmp_path}
    cells = {
        f"{name}-{strategy}": {
            "run": f"begins-{name}-{strategy}",
            "config": {"strategy": strategy, "ema__decay": 0.9, "seed": 5, "train__init_from": str(path)},
            "steps": 0,
        }
        for name, path in begins.items()
        for strategy in ("ddp", "fsdp")
    }
    cells |= {"wider": {"run": "wider", "config": {"model__dim": 32, "train__init_from": str(source)}, "steps": 0}}
    said = live(saved, cells, 2)
    for strategy in ("ddp", "fsdp"):
        for name in ("checkpoint", "folder"):
            assert said[f"{name}-{strategy}"] == f"starts at step 0 with the weights of {begins[name]}"
            found = load_file(saved / f"{name}-{strategy}.safetensors")
            for key, weight in weights.items():
                assert torch.equal(found[f"model.{key}"], weight)
                assert f"ema.{key}" not in found or torch.equal(found[f"ema.{key}"], weight), "the average begins there"
            assert all(not value.any() for key, value in found.items() if key.endswith("exp_avg"))
        text = said[f"other-{strategy}"]
        assert f"missing: {names[0]}; not of this model: new.weight; other shapes: {names[1]} of [1, 2], wanted" in text
        assert "rank-00000.safetensors has 0 bytes" in said[f"damaged-{strategy}"]
        assert f"there is no directory {tmp_path / 'none'}" in said[f"missing-{strategy}"]
        assert "holds neither model.safetensors nor manifest.json" in said[f"empty-{strategy}"]
    assert "other shapes: " in said["wider"] and "train.init_from: the weights in " in said["wider"]
