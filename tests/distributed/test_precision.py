"""bfloat16 learns what fp32 learns; gradients are clipped as torch clips them, also when they are sharded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed.start import config, records, run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("single")
    run_ranks(config("gpt", strategy="single"), place, 1)
    return place


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_bf16_is_close_to_fp32(single: Path, tmp_path: Path, strategy: str) -> None:
    run_ranks(config("gpt", strategy=strategy, train__precision="bf16"), tmp_path, 2)
    ours, theirs = ([r["loss"] for r in records(place) if r["kind"] == "train"] for place in (tmp_path, single))
    assert ours == pytest.approx(theirs, rel=5e-3)
    assert ours != pytest.approx(theirs, rel=1e-7), "the passes did run in bfloat16"


def compare_clipping() -> None:
    """Each step clips to 0.1, measures again, and lets torch do the same with the same gradients."""
    from trainpkg.runtime.parallel import Fsdp, local

    plain = Fsdp.clip

    def clip(self: Fsdp, max_norm: float | None, scale: torch.Tensor | None = None) -> torch.Tensor:
        assert scale is None
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        given = [p.grad.clone() for p in parameters if p.grad is not None]
        norm = plain(self, 0.1)
        assert norm > 0.1
        torch.testing.assert_close(plain(self, None).item(), 0.1, rtol=1e-4, atol=0)
        ours = [local(p.grad).clone() for p in parameters if p.grad is not None]
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = gradient
        theirs = torch.nn.utils.clip_grad_norm_(parameters, 0.1)
        torch.testing.assert_close(norm.item(), theirs.full_tensor().item())  # type: ignore[attr-defined]
        torch.testing.assert_close(ours, [local(p.grad) for p in parameters if p.grad is not None])
        print("clipped alike;", flush=True)
        return norm

    Fsdp.clip = clip  # type: ignore[method-assign,assignment]


def test_sharded_gradients_are_clipped_as_torch_clips_them(tmp_path: Path) -> None:
    run = config("gpt", strategy="fsdp", train__max_steps=3)
    ranks = run_ranks(run, tmp_path, 2, before=compare_clipping)
    assert all(log.read_text().count("clipped alike;") == 3 for log in ranks.logs), ranks.text()
