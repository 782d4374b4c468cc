"""Initial weights: each from its own seed, on the host, whatever else the model has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trainpkg import models
from trainpkg.config import ConvModel, GPTModel, OwnModel, ViTModel
from trainpkg.runtime import initial

CPU = torch.device("cpu")
CONFIGS = {
    "conv": ConvModel(name="conv", width=8),
    "vit": ViTModel(name="vit", dim=16, depth=2, heads=2),
    "gpt": GPTModel(name="gpt", dim=16, depth=2, heads=2, context=8),
}


class Tied(nn.Module):
    """Two names for one weight, a buffer, and a part that was built for real."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.empty(2))
        self.real = nn.Parameter(torch.full((2,), 7.0, device="cpu"))

    def initialise(self, name: str, tensor: Tensor) -> None:
        assert name in ("embed.weight", "scale")
        nn.init.normal_(tensor)


class Plain(nn.Linear):
    """Somebody's own, without a method that fills its weights."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3)
        self.first = self.weight[0, 0].item()  # has no answer on the meta device


@pytest.mark.parametrize("name", CONFIGS)
def test_models_are_built_without_memory_and_filled_by_seed(name: str) -> None:
    found = []
    for seed in (1, 1, 2):
        model = models.build(CONFIGS[name])
        assert all(tensor.is_meta for _, tensor in initial.tensors_of(model))
        torch.rand(seed)  # what was drawn before plays no part
        initial.fill(model, seed, CPU)
        found.append(model.state_dict())
    one, same, other = found
    assert all(torch.equal(one[key], same[key]) for key in one)
    drawn = [key for key in one if one[key].std() > 0]
    assert drawn and not any(torch.equal(one[key], other[key]) for key in drawn)
    assert all(tensor.isfinite().all() for tensor in one.values())
    norms = [key for key in one if "norm" in key and key.endswith("weight")]
    assert all((one[key] == 1).all() for key in norms)


def test_a_weight_does_not_depend_on_the_others() -> None:
    shallow, deep = models.build(CONFIGS["gpt"]), models.build(CONFIGS["gpt"])
    del deep.position
    for model in (shallow, deep):
        initial.fill(model, 1, CPU)
    assert torch.equal(shallow.get_parameter("head.weight"), deep.get_parameter("head.weight"))


def test_tied_weights_stay_tied_and_real_ones_as_they_are() -> None:
    with torch.device("meta"):
        model = Tied()
    initial.fill(model, 1, CPU)
    assert model.head.weight is model.embed.weight and model.embed.weight.std() > 0
    assert isinstance(model.embed.weight, nn.Parameter) and model.embed.weight.requires_grad
    assert (model.real == 7).all() and model.get_buffer("scale").std() > 0


def test_a_class_that_does_not_say_how_is_built_for_real() -> None:
    own = OwnModel(name=f"{__name__}:Plain", kwargs={"width": 4})

    def built(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return models.build(own)

    one, other = built(1), built(1)
    assert initial.digest(one) == initial.digest(other)
    before = initial.digest(one)
    initial.fill(one, 1, CPU)
    assert initial.digest(one) == before
    assert initial.digest(built(2)) != before
