"""Shapes, causality, parameter groups, schedule."""

from __future__ import annotations

import pytest
import torch

from trainpkg import models
from trainpkg.config import ConvModel, GPTModel, Model, Optim, ViTModel
from trainpkg.runtime import initial, optim


def real(config: Model, seed: int = 0) -> torch.nn.Module:
    model = models.build(config)
    initial.fill(model, seed, torch.device("cpu"))
    return model


@pytest.mark.parametrize("width", [1, 6, 32])
def test_conv(width: int) -> None:
    model = real(ConvModel(name="conv", width=width))
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize("patch", [1, 2, 4, 8])
def test_vit(patch: int) -> None:
    model = real(ViTModel(name="vit", dim=16, depth=2, heads=2, patch=patch))
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
    model = real(GPTModel(name="gpt", dim=32, depth=2, heads=4, context=16)).eval()
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
    (optimizer,) = optim.build(Optim(weight_decay=0.3), model, 8)
    decays = {group["weight_decay"]: group["params"] for group in optimizer.param_groups}
    assert all(p.ndim >= 2 for p in decays[0.3]) and all(p.ndim < 2 for p in decays[0.0])
    assert sum(map(len, decays.values())) == len(list(model.parameters()))


def test_schedule() -> None:
    config = Optim(warmup_steps=10, min_lr_ratio=0.1)
    rates = [optim.schedule(config, step, 110) for step in range(110)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55) and rates[109] == pytest.approx(0.1, abs=1e-3)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    constant = Optim(warmup_steps=0, schedule="constant")
    assert {optim.schedule(constant, step, 110) for step in range(110)} == {1.0}
    short = Optim(warmup_steps=50)
    assert optim.schedule(short, 3, 4) == pytest.approx(0.08)
    linear = Optim(warmup_steps=10, schedule="linear", min_lr_ratio=0.0)
    assert [optim.schedule(linear, step, 110) for step in (10, 60, 110)] == pytest.approx([1.0, 0.5, 0.0])
    wsd = Optim(warmup_steps=10, schedule="wsd", cooldown=0.5, min_lr_ratio=0.0)
    assert [optim.schedule(wsd, step, 100) for step in (9, 50, 75, 100)] == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_the_learning_rate_grows_with_the_batch_only_where_asked_for() -> None:
    assert optim.peak(Optim(lr=0.1), 512) == 0.1
    assert optim.peak(Optim(lr=0.1, lr_scaling="linear", base_batch=128), 512) == pytest.approx(0.4)
    assert optim.peak(Optim(lr=0.1, lr_scaling="sqrt", base_batch=128), 512) == pytest.approx(0.2)


def test_muon_takes_the_matrices_of_the_blocks_and_makes_its_updates_orthogonal() -> None:
    model = models.build(GPTModel(name="gpt", dim=16, depth=1, heads=2, context=8))
    muon, adamw = optim.build(Optim(name="muon"), model, 8)
    names = {id(p): name for name, p in model.named_parameters()}
    mine = [names[id(p)] for group in muon.param_groups for p in group["params"]]
    assert mine == [f"blocks.0.{part}.weight" for part in ("attention.qkv", "attention.out", "mlp.0", "mlp.2")]
    assert len(mine) + sum(len(group["params"]) for group in adamw.param_groups) == len(names)
    update = optim.newton_schulz(torch.randn(24, 8)) / 3**0.5
    values = torch.linalg.svdvals(update)
    assert values.min() > 0.6 and values.max() < 1.3
