"""Ranks that share sequences compute what one process does: attention, a training, an evaluation, a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.distributed import many
from tests.distributed.start import config, records, run_ranks
from trainpkg import data, models, smoke, tasks
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.evaluate import evaluate, for_these_ranks
from trainpkg.runtime import mesh, rank, sequence
from trainpkg.runtime.distributed import RankContext
from trainpkg.runtime.parallel import spread

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

GPT: many.Cell = {"base": "gpt", "model__heads": 4, "data__max_bytes": 20_000}
CELLS: dict[str, many.Cell] = {
    "ddp-2": GPT | {"strategy": "ddp", "sequence_parallel": 2, "train__accumulation": 3},
    "fsdp-4": GPT | {"strategy": "fsdp", "sequence_parallel": 4},
    "fsdp-2": GPT | {"strategy": "fsdp", "sequence_parallel": 2},
}
THEN: many.Cell = {"strategy": "ddp", "sequence_parallel": 4}  # how fsdp-2, which is stopped, goes on


def check_in_ranks() -> None:
    rank.STAGES["train"] = __name__


def main(ctx: RankContext, run: Run, spec: Mapping[str, Any]) -> str:
    """As a stage's: one check after the other, on four ranks of one node."""
    folder = Path(spec["run_dir"])
    for size in (2, 4):
        for causal in (True, False):
            attention(mesh.neighbours(ctx, size), size, causal)
    with pytest.raises(UserError, match=r"sequence_parallel = 3 .* the ranks' nodes have \[4, 4, 4, 4\]"):
        mesh.neighbours(ctx, 3)
    evaluations(ctx)
    found = smoke.Smoke(ctx, run_of(GPT | {"strategy": "fsdp", "sequence_parallel": 2}), folder)
    for check in (smoke.training, smoke.checkpoint):
        assert check(found).problem is None
    for name, cell in CELLS.items():
        (folder / name).mkdir(exist_ok=True)
        if name == "fsdp-2":
            many.live(ctx, run_of(cell), folder / name, many.STOP_AT)
            cell = cell | THEN
        many.live(ctx, run_of(cell), folder / name)
    return "finished"


def run_of(cell: many.Cell) -> Run:
    return config(**cell)


def attention(group: Any, size: int, causal: bool) -> None:
    """Result and gradients of this rank's piece, bit for bit those of whole sequences."""
    index = torch.distributed.get_rank(group)
    torch.manual_seed(0)
    whole = [torch.randn(2, 8, 12, 4, requires_grad=True) for _ in range(3)]
    seen = torch.randn(2, 8, 12, 4)
    expected = F.scaled_dot_product_attention(*whole, is_causal=causal)
    expected.backward(seen)

    def piece(tensor: Tensor) -> Tensor:
        return tensor.detach().chunk(size, dim=2)[index]

    # strided as a model's are: [N, T, heads, dim] seen as [N, heads, T, dim]
    mine = [piece(t).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in whole]
    found = sequence.Attention(group, size)(*mine, is_causal=causal, dropout_p=0.0)
    found.backward(piece(seen))
    assert torch.equal(found, piece(expected)), (size, causal)
    for one, other in zip(mine, whole, strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, piece(other.grad)), (size, causal)


def evaluations(ctx: RankContext) -> None:
    """Sums over the held-out text, whose last window is partial, in passes that are not full."""
    found: dict[int, list[float]] = {}
    for size in (1, 2, 4):
        run = run_of(GPT | {"strategy": "fsdp", "sequence_parallel": size})
        splits = data.build(run, ctx.device)
        strategy = spread(ctx, run, lambda run=run: models.build(run.model))
        task = tasks.build(run, strategy.pieces, splits)
        assert (strategy.data_rank, strategy.data_world_size) == (ctx.rank // size, 4 // size)
        sums = evaluate(ctx, strategy, task, splits, batch=9)
        assert sums is not None
        found[size] = sums.tolist()
        assert splits.validation.batch(torch.tensor([splits.validation.num_samples - 1]))[1].min() < 0
    assert found[1][-1] > 100
    for size in (2, 4):
        assert found[size] == pytest.approx(found[1], rel=1e-7)
        assert found[size][1:] == found[1][1:], "bytes and windows are counted once"
    odd = config(**GPT, strategy="fsdp", sequence_parallel=2).model_copy(update={"sequence_parallel": 3})
    assert for_these_ranks(ctx, odd).sequence_parallel == 1
    assert for_these_ranks(ctx, run).sequence_parallel == 4


def test_pieces_of_sequences(tmp_path: Path) -> None:
    many.run_cells({"one": GPT | {"strategy": "single"}}, tmp_path / "single", 1)
    (tmp_path / "shared").mkdir()
    run_ranks(config("gpt"), tmp_path / "shared", 4, before=check_in_ranks, timeout_s=200)
    reference, _, _ = many.outcome(tmp_path / "single", "one")
    for name in CELLS:
        weights, _, _ = many.outcome(tmp_path / "shared", name)
        for key, tensor in reference.items():
            torch.testing.assert_close(weights[key], tensor, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        for one, other in zip(records(tmp_path / "shared" / name), records(tmp_path / "single" / "one"), strict=True):
            assert (one["kind"], one["step"], one["samples"]) == (other["kind"], other["step"], other["samples"])
            if one["kind"] == "train":
                assert one["tokens"] == other["tokens"]
                assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
                assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
            else:
                assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)
