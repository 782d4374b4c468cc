"""One weight of two names, as in GPT-2: trained, averaged, judged and handed on, whole on each rank and sharded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.distributed.start import config, run_ranks
from trainpkg.__main__ import main

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


class Tied(nn.Module):
    """Of bytes; made on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.embed(tokens)
        for block in self.blocks:
            found = found + block(found).tanh()
        return cast(Tensor, self.head(found))

    def initialise(self, name: str, tensor: Tensor) -> None:
        nn.init.normal_(tensor, std=1 / math.sqrt(tensor.shape[-1]))


def trained(folder: Path, strategy: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Evaluation and exported averages of some steps on two ranks."""
    changes: dict[str, Any] = {"model": {"name": f"{__name__}:Tied"}, "ema__decay": 0.5, "train__max_steps": 4}
    run = config("gpt", **changes, strategy=strategy, data__context=16)
    run_ranks(run, folder / "runs/gpt", 2)
    run_ranks(run, folder / "runs/gpt", 2, stage="evaluate")
    (folder / "recipes").mkdir()
    tree = {k: v for k, v in run.tree().items() if k not in ("run", "recipe")}
    (folder / "recipes/tiny.yaml").write_text(yaml.safe_dump(tree))
    (folder / "runs.tsv").write_text("run\trecipe\ngpt\ttiny\n")
    places = {"results_dir": str(folder), "sheet": str(folder / "runs.tsv"), "recipes": str(folder / "recipes")}
    assert main(["export", "--config-json", json.dumps(places), "--run", "gpt", "--out", str(folder / "out")]) == 0
    return json.loads((folder / "runs/gpt/evaluation.json").read_text()), load_file(folder / "out/model.safetensors")


def test_tied_weights_are_one_under_every_strategy(tmp_path: Path) -> None:
    found = {name: trained(tmp_path / name, name) for name in ("ddp", "fsdp")}
    for evaluation, weights in found.values():
        assert evaluation["weights"] == "ema"
        assert torch.equal(weights["embed.weight"], weights["head.weight"])
        again = Tied()
        again.load_state_dict(weights)
        assert torch.equal(again.embed.weight, again.head.weight)
    (one, its), (other, others) = found.values()
    assert its.keys() == others.keys()
    assert max((its[key] - others[key]).abs().max().item() for key in its) < 1e-4
    assert other["metrics"]["loss"] == pytest.approx(one["metrics"]["loss"], rel=1e-4)
