"""Parts of checkpoints and checks that need no other rank: what the index may hold, sums that stay exact."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.unit.test_runtime import context
from trainpkg import export
from trainpkg.config import Checkpoint, Ema
from trainpkg.errors import UserError
from trainpkg.runtime import checks, manifest
from trainpkg.runtime.checkpoints import init_from, retention, shards, tensors
from trainpkg.runtime.checkpoints.saving import Here, Part
from trainpkg.runtime.checkpoints.shelf import Shelf
from trainpkg.runtime.update import Average


@pytest.mark.parametrize("world_size", [1, 2, 33, 1024, 5000])
def test_known_sums_are_exact_in_single_precision(world_size: int) -> None:
    total = np.zeros(1000, np.float32)
    for rank in range(world_size):
        total += checks.known_values(1000, rank, torch.device("cpu")).numpy()
    assert np.array_equal(total, checks.known_sums(1000, world_size, torch.device("cpu")).numpy())


def test_largest_partial_sum_of_the_largest_world_is_exact() -> None:
    sums = checks.known_sums(1000, 32_768, torch.device("cpu"))
    assert sums.max().item() < 2**24


def save(parts: dict[str, torch.Tensor], folder: Path) -> tuple[Path, dict[str, Any]]:
    """(the checkpoint of one rank, its tensors as index.json has them)."""
    writer, waiting = Here(), folder / ".tmp-1"
    writer.write(Part(waiting, {"note": "x"}, shards.file_of(0), shards.Shards(parts)))
    files = writer.answer().files
    assert files == manifest.describe(waiting, ["note", "rank-00000.safetensors"]), "summed while written"
    writer.publish(retention.Publication(str(folder), str(waiting), 1, files, keep_last=1))
    assert writer.answer().problem is None
    return folder / "step-00000001", shards.read_index(folder / "step-00000001")["tensors"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_every_type_comes_back_bit_by_bit_and_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"model.{name}": torch.randint(0, 2, (3, 5, 7)).to(dtype) for dtype, name in shards.DTYPES.items()}
    parts |= {
        "model.scalar": torch.tensor(1.5),
        "model.strided": torch.randn(4, 6).T,
        "model.odd": torch.ones(3).bool(),
    }
    root, index = save(parts, tmp_path)
    assert index.keys() == parts.keys()
    for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
        monkeypatch.delattr(module, name)
    found = {name: torch.empty_like(part) for name, part in parts.items()}
    shards.load(root, found)
    assert all(torch.equal(found[name], part) for name, part in parts.items())
    assert {path.suffix for path in root.iterdir()} == {".json", ".safetensors", ""}
    copied = torch.zeros(shards.Shards(parts).num_bytes + 9, dtype=torch.uint8)
    shards.Shards(parts).copy_to(copied)
    assert bytes(copied[:-9].tolist()) == (root / "rank-00000.safetensors").read_bytes(), "copied as it is written"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_weight_without_gradient_has_nothing_to_save_and_nothing_to_load(tmp_path: Path) -> None:
    """As with ddp.find_unused_parameters: what an optimizer keeps for it begins when it is first used."""

    def fresh() -> tuple[torch.nn.ModuleDict, torch.optim.AdamW]:
        model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("used", "unused")})
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def step(model: torch.nn.ModuleDict, optimizer: torch.optim.AdamW, *names: str) -> None:
        torch.stack([model[name](torch.ones(1, 3)).sum() for name in names]).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    model, optimizer = fresh()
    step(model, optimizer, "used")
    tmp_path, saved = save(tensors.of_training(model, [optimizer]), tmp_path)
    again, its = fresh()
    tensors.make_room(again, [its], saved)
    assert len(saved) == 4 + 6 and saved["optimizer.used.weight.exp_avg"]["shape"] == [3, 3]
    shards.load(tmp_path, tensors.of_training(again, [its]))
    for one, its_optimizer in ((model, optimizer), (again, its)):
        step(one, its_optimizer, "used", "unused")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


class Tied(nn.Module):
    """One weight of two names, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_tied_weights_and_their_averages_are_there_by_each_name(tmp_path: Path) -> None:
    model: Any = Tied()
    strategy: Any = SimpleNamespace(module=model)
    average = Average(Ema(decay=0.5), strategy)
    model.embed.weight.data.fill_(7.0)
    names = {"embed.weight", "head.weight"}
    for found in (tensors.full_weights(model), tensors.whole(average.state())):
        save_file(found, tmp_path / "model.safetensors")
        again = load_file(tmp_path / "model.safetensors")
        assert again.keys() == names and torch.equal(again["embed.weight"], again["head.weight"])
    kept = average.state()["embed.weight"].clone()
    root, saved = save(tensors.of_model(model) | tensors.of_average(average.state()), tmp_path)
    weights, kind = export.read_weights(root, "ema")
    assert kind == "ema" and weights.keys() == names and all(torch.equal(one, kept) for one in weights.values())
    shards.load(root, tensors.renamed(tensors.of_model(model), saved, averaged=True))
    assert torch.equal(model.head.weight, kept)


def test_a_model_folder_without_the_weights_asked_for_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(init_from, "broadcast_object", lambda ctx, value: value)
    shelf = Shelf(context(), tmp_path, Checkpoint())
    with pytest.raises(UserError, match=r"evaluate.weights = 'ema': .* holds raw weights alone; take auto or raw"):
        init_from.choose(shelf, tmp_path, "ema")
    (tmp_path / "config.json").write_text('{"weights": "ema", "step": 3}')
    with pytest.raises(UserError, match=r"evaluate.weights = 'raw': .* holds ema weights alone"):
        init_from.choose(shelf, tmp_path, "raw")
    model, averages = tmp_path / init_from.WEIGHTS, tmp_path / init_from.AVERAGES
    assert [init_from.choose(shelf, tmp_path, one) for one in ("auto", "ema")] == [(model, "ema", 3)] * 2
    averages.touch()
    (tmp_path / "config.json").unlink()
    assert [init_from.choose(shelf, tmp_path, one)[:2] for one in ("auto", "ema", "raw")] == [
        (averages, "ema"), (averages, "ema"), (model, "raw"),
    ]  # fmt: skip
