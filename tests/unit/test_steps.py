"""Parts of a step that need no other rank: clipping, and the meter that times it; a file that cannot be read."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.distributed.start import config
from trainpkg.errors import UserError
from trainpkg.runtime import manifest
from trainpkg.runtime.distributed import RankContext
from trainpkg.runtime.metrics import Meter
from trainpkg.runtime.parallel import Single

CPU = torch.device("cpu")


@pytest.mark.parametrize("max_norm", [0.1, 1e9, None])
def test_clipping_is_torchs(max_norm: float | None) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    strategy = Single(RankContext(0, 0, 1, 1, 0, 1, "127.0.0.1", 1, "here", CPU, "gloo"), config(), module)
    module(torch.randn(4, 5)).square().sum().backward()
    given = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    norm = strategy.clip(max_norm)
    ours = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    for parameter, gradient in zip(module.parameters(), given, strict=True):
        parameter.grad = gradient
    theirs = nn.utils.clip_grad_norm_(module.parameters(), float("inf") if max_norm is None else max_norm)
    torch.testing.assert_close(norm, theirs)
    torch.testing.assert_close(ours, [p.grad for p in module.parameters()])
    if max_norm == 0.1:
        assert norm > 0.1 and torch.cat([g.flatten() for g in ours]).norm().item() == pytest.approx(0.1, rel=1e-4)


def test_a_step_after_which_ranks_meet_waits_for_the_gpu_in_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: time.sleep(0.02))
    meter = Meter(torch.device("cuda", 0))
    meter.begin()
    meter.end(wait=False)
    assert meter.last_s < 0.02
    meter.begin()
    meter.end(wait=True)
    assert meter.last_s >= 0.02 and meter.steps_s >= 0.02 and meter.num_steps == 2
    meter = Meter(CPU)
    meter.begin()
    meter.end(wait=True)
    assert meter.last_s < 0.02


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_file_that_cannot_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (tmp_path / "a").write_text("one")
    files = manifest.describe(tmp_path, ["a"])
    manifest.write_manifest(tmp_path, files)

    def refuse(self: Path, *_: object, **__: object) -> str:
        raise OSError(number, "refused")

    for method, action in (
        ("open", lambda: manifest.wrong_checksum(tmp_path, "a", files["a"])),
        ("read_text", lambda: manifest.read_manifest(tmp_path)),
        ("stat", lambda: manifest.read_manifest(tmp_path)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refuse)
            with pytest.raises(UserError, match=r"cannot be read \(refused\), and may be whole"):
                action()
    (tmp_path / "a").unlink()
    assert "a is missing" in str(manifest.wrong_checksum(tmp_path, "a", files["a"]))
