"""From gradients to weights in one process: loss scale, NaN policy, averaging, norms per block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.start import config
from trainpkg.config import Profile
from trainpkg.runtime import insight
from trainpkg.runtime.distributed import RankContext
from trainpkg.runtime.parallel import Single
from trainpkg.runtime.update import GROWTH_STEPS, Update

HERE = RankContext(0, 0, 1, 1, 0, 1, "127.0.0.1", 1, "here", torch.device("cpu"), "gloo")


def updating(**keys: Any) -> tuple[Update, nn.Module]:
    run = config("gpt", optim__warmup_steps=0, **keys)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    return Update(run, Single(HERE, run, module)), module


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def step(update: Update, module: nn.Module, number: int, factor: float = 1.0, records: bool = False) -> Tensor | None:
    update.begin(number - 1)
    loss = module(torch.ones(2, 4)).square().mean() * factor
    update.scaled(loss).backward()  # type: ignore[no-untyped-call]
    return update.step(number, loss, records)


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_step_with_nan_changes_nothing(name: str, policy: str) -> None:
    update, module = updating(optim__name=name, train__nonfinite=policy)
    step(update, module, 1)
    before = weights(module)
    states = json.dumps([s["step"].item() for o in update.optimizers for s in o.state.values() if "step" in s])
    assert torch.isnan(step(update, module, 2, float("nan")))
    assert torch.equal(weights(module), before)
    assert states == json.dumps([s["step"].item() for o in update.optimizers for s in o.state.values() if "step" in s])
    assert update.record()["skipped_steps"] == 1
    assert update.first_bad() == (2 if policy == "stop" else 0)
    step(update, module, 3)
    assert not torch.equal(weights(module), before) and torch.isfinite(weights(module)).all()
    assert "the gradients of step 2 hold NaN" in str(update.refuse(2))


def test_nan_is_let_through_where_asked_for() -> None:
    update, module = updating(train__nonfinite="ignore")
    step(update, module, 1, float("nan"))
    assert torch.isnan(weights(module)).any() and update.first_bad() == 0


def test_the_norm_is_computed_where_something_needs_it() -> None:
    """A record, clipping, or a look for NaN; the weights are the same without it."""
    update, module = updating(train__nonfinite="ignore", optim__clip_norm=None)
    looking, other = updating(train__nonfinite="stop", optim__clip_norm=None)
    for number, records in ((1, False), (2, True), (3, False)):
        norm, known = (step(*its, number, records=records) for its in ((update, module), (looking, other)))
        assert known is not None and (torch.equal(norm, known) if records else norm is None)
        assert torch.equal(weights(module), weights(other))
    clipping, module = updating(train__nonfinite="ignore", optim__clip_norm=1.0)
    assert step(clipping, module, 1) is not None


def test_the_loss_scale_is_torch_s_own() -> None:
    """Grown, halved and counted as torch.amp.GradScaler does; the norm is that of the gradients without scale."""
    update, module = updating(train__precision="fp16", optim__clip_norm=None, optim__name="sgd")
    plain, other = updating(optim__clip_norm=None, optim__name="sgd")
    scaler = torch.amp.GradScaler("cpu", growth_interval=GROWTH_STEPS)
    update._good_steps.fill_(GROWTH_STEPS - 3)
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    scaler._growth_tracker.fill_(GROWTH_STEPS - 3)  # type: ignore[union-attr]
    reference = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    for number in range(1, 8):
        bad = number in (2, 6)
        norm = step(update, module, number, float("inf") if bad else 1.0)
        if not bad:
            torch.testing.assert_close(norm, step(plain, other, number))
            torch.testing.assert_close(weights(module), weights(other))
        scaler.scale(torch.zeros(1))
        reference.param_groups[0]["params"][0].grad = torch.full((1,), float("inf") if bad else 1.0)
        scaler.step(reference)
        scaler.update()
        assert update.record()["loss_scale"] == scaler.get_scale()
    assert update.record()["skipped_steps"] == 2 and update.first_bad() == 2
    again, _ = updating(train__precision="fp16")
    again.load(json.loads(json.dumps(update.state())))
    assert again.state() == update.state()


def test_fp16_stops_only_where_no_scale_helps() -> None:
    update, module = updating(train__precision="fp16")
    update._scale.fill_(2.0**120)
    step(update, module, 1, 1e4)  # overflows in backward, while the loss is fine
    assert update.record()["skipped_steps"] == 1 and update.first_bad() == 0
    step(update, module, 2, float("nan"))
    assert update.first_bad() == 2


def test_averages_follow_every_second_step_and_are_swapped_in_and_out() -> None:
    update, module = updating(ema__decay=0.75, ema__every_steps=2)
    expected = weights(module)
    for number in (1, 2, 3, 4):
        step(update, module, number)
        if number % 2 == 0:
            expected = 0.75 * expected + 0.25 * weights(module)
    before = weights(module)
    with update.average.swapped():
        torch.testing.assert_close(weights(module), expected)
    assert torch.equal(weights(module), before)
    assert list(update.average.state()) == [name for name, _ in module.named_parameters()]


def test_norms_of_blocks_are_in_the_record_that_asks_for_them() -> None:
    update, module = updating(logging__layers=True, optim__name="sgd", optim__weight_decay=0.0, optim__clip_norm=1e-3)
    assert isinstance(update.layers, insight.Layers)
    step(update, module, 1)
    assert update.record() == {"skipped_steps": 0}
    old = weights(module)
    norm = step(update, module, 2, records=True)
    found = update.record()["layers"]["rest"]
    assert found["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    moved = (weights(module) - old).norm() / old.norm()
    assert found["update_ratio"] == pytest.approx(moved.item(), rel=1e-4)


def test_a_window_of_steps_becomes_a_trace_and_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    config = Profile(first_step=2, last_step=3, ranks=(0, 5))
    assert type(insight.window(config.model_copy(update={"ranks": (1,)}), HERE, tmp_path)) is insight.NoWindow
    for folder in (tmp_path / "good", Path("/proc/nowhere")):
        window = insight.window(config, HERE, folder)
        for number in range(1, 6):
            window.step(number)
            torch.ones(3) + number
        window.close()
    assert [path.name for path in (tmp_path / "good").iterdir()] == ["steps-2-3.rank-0.json.gz"]
