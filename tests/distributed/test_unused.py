"""Parameters that a step does not use, under data parallel: named with the key that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from tests.distributed.start import config, run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


def never() -> None:
    use_spare(lambda passes, rank: False)


def not_in_the_third_pass() -> None:
    """The first two are the warm-up and step 1."""
    use_spare(lambda passes, rank: passes != 3)


def not_on_rank_1() -> None:
    use_spare(lambda passes, rank: passes != 3 or rank == 0)


def use_spare(uses: Any) -> None:
    """The network gets a layer that only some passes use."""
    import os

    from trainpkg import models
    from trainpkg.models.conv import Conv

    plain_build, plain_forward = models.build, Conv.forward
    passes = [0]

    def build(model: Any) -> nn.Module:
        net = plain_build(model)
        net.spare = nn.Linear(10, 10)
        return net

    def forward(self: Any, images: Tensor) -> Tensor:
        passes[0] += self.training
        logits = plain_forward(self, images)
        return self.spare(logits) if uses(passes[0], int(os.environ["RANK"])) else logits

    models.build, Conv.forward = build, forward  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (never, "no gradient in a first pass: spare.weight, spare.bias"),
        (not_in_the_third_pass, "no gradient in the last step on rank 0: spare.weight, spare.bias"),
    ],
)
def test_unused_parameters_are_named_with_the_key(tmp_path: Path, before: Any, words: str) -> None:
    ranks = run_ranks(config("digits", strategy="ddp", train__max_steps=4), tmp_path, 2, expect=2, before=before)
    text = ranks.logs[0].read_text()
    assert f"trainpkg: error: ddp: {words}. Data parallel waits" in text
    assert "set ddp.find_unused_parameters: true" in text and "Traceback" not in text


@pytest.mark.parametrize("before", [never, not_on_rank_1])
def test_they_train_where_they_are_searched_for(tmp_path: Path, before: Any) -> None:
    run = config("digits", strategy="ddp", ddp__find_unused_parameters=True, train__max_steps=4)
    run_ranks(run, tmp_path, 2, before=before)
