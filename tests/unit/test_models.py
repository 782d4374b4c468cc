"""Shapes, causality, parameter groups, schedule."""

from __future__ import annotations

import pytest
import torch

from trainpkg import models
from trainpkg.config import ConvModel, GPTModel, Optim, ViTModel
from trainpkg.runtime import optim


@pytest.mark.parametrize("width", [1, 6, 32])
def test_conv(width: int) -> None:
    model = models.build(ConvModel(name="conv", width=width))
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize("patch", [1, 2, 4, 8])
def test_vit(patch: int) -> None:
    model = models.build(ViTModel(name="vit", dim=16, depth=2, heads=2, patch=patch))
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 10)


def test_vit_cuts_square_patches() -> None:
    model = models.ViT(ViTModel(name="vit", dim=16, depth=1, heads=2, patch=4))
    seen = []
    model.embed.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    image = torch.arange(64.0).view(1, 1, 8, 8)
    model(image)
    assert torch.equal(seen[0][0, 1].view(4, 4), image[0, 0, :4, 4:])


def test_gpt_is_causal_and_starts_near_uniform() -> None:
    torch.manual_seed(0)
    model = models.build(GPTModel(name="gpt", dim=32, depth=2, heads=4, context=16)).eval()
    text = torch.randint(256, (2, 16))
    changed = text.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 256
    one, other = model(text), model(changed)
    assert one.shape == (2, 16, 256)
    assert torch.equal(one[:, :10], other[:, :10]) and not torch.equal(one[:, 10:], other[:, 10:])
    assert model(text[:, :5]).shape == (2, 5, 256)
    loss = torch.nn.functional.cross_entropy(one.flatten(0, 1), text.flatten())
    assert loss.item() == pytest.approx(5.545, abs=0.2)


@pytest.mark.parametrize("name", ["conv", "vit", "gpt"])
def test_models_tell_their_blocks_and_carry_no_buffers_that_ranks_could_disagree_on(name: str) -> None:
    config = {"conv": ConvModel(name="conv"), "vit": ViTModel(name="vit"), "gpt": GPTModel(name="gpt")}[name]
    model = models.build(config)
    assert len(model.blocks) >= 2 and not list(model.buffers())  # type: ignore[arg-type]


def test_weight_decay_on_matrices_only() -> None:
    model = models.build(GPTModel(name="gpt", dim=16, depth=1, heads=2, context=8))
    optimizer = optim.build(Optim(weight_decay=0.3), model)
    decays = {group["weight_decay"]: group["params"] for group in optimizer.param_groups}
    assert all(p.ndim >= 2 for p in decays[0.3]) and all(p.ndim < 2 for p in decays[0.0])
    assert sum(map(len, decays.values())) == len(list(model.parameters()))


def test_schedule() -> None:
    config = Optim(lr=1.0, warmup_steps=10, min_lr_ratio=0.1)
    rates = [optim.learning_rate(config, step, 110) for step in range(110)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55) and rates[109] == pytest.approx(0.1, abs=1e-3)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    constant = Optim(lr=1.0, warmup_steps=0, schedule="constant")
    assert {optim.learning_rate(constant, step, 110) for step in range(110)} == {1.0}
    short = Optim(lr=1.0, warmup_steps=50)
    assert optim.learning_rate(short, 3, 4) == pytest.approx(0.08)
