"""Features that cannot go together are refused with the reason when the config is read, and none is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.distributed.start import TINY
from trainpkg import tasks
from trainpkg.config import Run
from trainpkg.data import Splits
from trainpkg.data.samples import MapStyle
from trainpkg.errors import UserError
from trainpkg.runtime.sequence import Pieces

TEXT = TINY["gpt"]["data"]
TWO = {"nodes": 1, "gpus_per_node": 2, "device": "cpu"}


def run(base: str, sections: dict[str, Any]) -> Run:
    return Run.model_validate({**TINY[base], "run": "a", "recipe": "r", "launch": TWO, **sections})


@pytest.mark.parametrize(
    ("base", "sections", "sentence"),
    [
        ("digits", {"strategy": "single"}, "'single' contradicts 2 ranks"),
        ("digits", {"strategy": "pp"}, "pipeline parallel is not offered; fsdp or hsdp shard"),
        ("gpt", {"strategy": "fsdp", "ddp": {"find_unused_parameters": True}}, "only DistributedDataParallel searches"),
        ("gpt", {"fsdp": {"reshard_after_forward": False}}, "fsdp.reshard_after_forward = False has no effect"),
        ("gpt", {"fsdp": {"reduce_every_microbatch": False}}, "fsdp.reduce_every_microbatch = False has no effect"),
        ("gpt", {"strategy": "ddp", "fsdp": {"cpu_offload": True}}, "only shards are kept elsewhere"),
        ("gpt", {"strategy": "fsdp", "fsdp": {"cpu_offload": True}}, "there is no device whose memory it would spare"),
        ("digits", {"sequence_parallel": 2}, "only gpt has a sequence to share"),
        ("gpt", {"sequence_parallel": 3}, "sequence_parallel = 3 does not divide"),
        ("gpt", {"sequence_parallel": 2, "data": {**TEXT, "context": 15}}, "does not divide data.context = 15: each"),
        ("digits", {"optim": {"lr_scaling": "sqrt"}}, "needs optim.base_batch"),
        ("digits", {"optim": {"base_batch": 12}}, "optim.base_batch = 12 has no effect"),
        ("digits", {"optim": {"name": "muon"}}, "its blocks have no matrices"),
        ("digits", {"evaluate": {"weights": "ema"}}, "evaluate.weights = 'ema' needs a section ema"),
        ("digits", {"evaluate": {"checkpoint": "best"}}, "needs checkpoint.keep_best of at least 1"),
        ("digits", {"profile": {"first_step": 5, "last_step": 4}}, "is before profile.first_step = 5"),
        ("digits", {"profile": {"first_step": 1, "last_step": 2, "ranks": [2]}}, "[2] of 2 ranks do not exist"),
    ],
)
def test_what_cannot_go_together_is_refused_with_the_reason(base: str, sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        run(base, sections)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_what_shards_may_be_told_how(strategy: str) -> None:
    sections = {"strategy": strategy, "fsdp": {"reshard_after_forward": False, "reduce_every_microbatch": False}}
    assert run("gpt", sections).fsdp.reshard_after_forward is False


def test_pieces_are_of_the_length_that_samples_have() -> None:
    model = {**TINY["gpt"]["model"], "context": 15}
    assert run("gpt", {"sequence_parallel": 2, "model": model, "data": {**TEXT, "context": 14}}).sequence_parallel == 2
    samples = MapStyle([0], tokens=15)
    with pytest.raises(UserError, match="sequence_parallel = 2 does not divide the 15 tokens of a sample"):
        tasks.build(run("gpt", {}), Pieces(2), Splits(samples, samples, "", {}))
