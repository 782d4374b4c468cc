"""Equal initial weights from every strategy, and no rank that holds a whole model which is sharded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.distributed.start import config, run_ranks
from trainpkg import models
from trainpkg.config import GPTModel, Run
from trainpkg.errors import UserError
from trainpkg.runtime import initial, rank
from trainpkg.runtime.checkpoints import tensors
from trainpkg.runtime.distributed import RankContext
from trainpkg.runtime.parallel import spread
from trainpkg.runtime.seeding import mix

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

LARGE_MB = 103


def check_in_ranks() -> None:
    rank.STAGES["train"] = __name__


def main(ctx: RankContext, run: Run, spec: Mapping[str, Any]) -> str:
    """As a stage's: one check after the other."""
    equal_weights(ctx)
    own_modules(ctx)
    growth = {name: growth_mb(ctx, real) for name, real in (("meta", False), ("real", True))}
    print(f"growth {growth}", flush=True)
    assert growth["real"] > 0.9 * LARGE_MB, f"the measure sees nothing: {growth}"
    assert growth["meta"] < 0.5 * LARGE_MB, f"a quarter, and one weight at a time: {growth}"
    return "finished"


def equal_weights(ctx: RankContext) -> None:
    """Bit for bit those of one process."""
    for base in ("digits", "gpt"):
        run = config(base, seed=3)
        single = models.build(run.model)
        initial.fill(single, 3, torch.device("cpu"))
        for strategy in ("ddp", "fsdp", "hsdp"):
            one = run.model_copy(update={"strategy": strategy})
            whole = tensors.full_weights(spread(ctx, one, lambda one=one: models.build(one.model)).module)
            if ctx.is_main:
                different = [name for name, t in single.state_dict().items() if not torch.equal(t, whole[name])]
                assert not different, (base, strategy, different)
            print(f"{base} {strategy} equal", flush=True)


def own_modules(ctx: RankContext) -> None:
    """Built for real on each rank: equal where torch's seed decides, refused where something else does."""
    for strategy in ("ddp", "fsdp"):
        found = spread(ctx, config("gpt", strategy=strategy, seed=3), lambda: nn.Linear(5, 3))
        torch.manual_seed(mix("weights", 3))
        whole, expected = tensors.full_weights(found.module), nn.Linear(5, 3)
        assert not ctx.is_main or torch.equal(whole["weight"], expected.weight)

        def unequal() -> nn.Module:
            model = nn.Linear(5, 3)
            nn.init.constant_(model.bias, ctx.rank)
            return model

        with pytest.raises(UserError, match="what the model's constructor puts into its weights differs between ranks"):
            spread(ctx, config("gpt", strategy=strategy), unequal)


def growth_mb(ctx: RankContext, real: bool) -> float:
    """How much more memory this rank held while a model of LARGE_MB was spread, at most."""
    model = GPTModel(name="gpt", dim=512, depth=8, heads=8, context=64)
    run = config("gpt", strategy="fsdp")

    def made() -> nn.Module:
        return models.GPT(model) if real else models.build(model)

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory_mb("VmRSS")
    strategy = spread(ctx, run, made)
    assert abs(sum(p.numel() for p in strategy.module.parameters()) * 4e-6 - LARGE_MB) < 2
    return memory_mb("VmHWM") - before


def memory_mb(which: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(which)).split()[1]) * 1024e-6


def test_initial_weights(tmp_path: Path) -> None:
    ranks = run_ranks(config("digits"), tmp_path, 4, nodes=[2, 2], before=check_in_ranks)
    assert ranks.logs[0].read_text().count(" equal") == 6
