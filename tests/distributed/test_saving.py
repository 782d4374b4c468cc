"""Saving beside training, and what is loaded by name: the same bytes, the same errors, nothing in place of another."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.distributed.start import config, run_ranks, start
from trainpkg.config import Run
from trainpkg.runtime import manifest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


def checkpoint(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step-{step:08d}"


def never_ready() -> None:
    """What is written beside training is waited for by the next save, and not noticed before."""
    from trainpkg.runtime.checkpoints.saving import Beside

    Beside.ready = property(lambda self: False)  # type: ignore[assignment]


@pytest.mark.parametrize(("base", "strategy"), [("digits", "ddp"), ("gpt", "fsdp")])
def test_saved_beside_training_is_what_the_step_was(tmp_path: Path, base: str, strategy: str) -> None:
    keys = {"strategy": strategy, "model__dropout": 0.2, "ema__decay": 0.9, "logging__every_steps": 3}
    run_ranks(config(base, **keys), tmp_path / "here", 2)
    ranks = run_ranks(config(base, **keys, checkpoint__asynchronous=True), tmp_path / "beside", 2, before=never_ready)
    for step in (4, 8):
        one, other = (manifest.read_manifest(checkpoint(tmp_path / place, step)) for place in ("here", "beside"))
        assert one.keys() == other.keys() and len(one) == 6
        assert [name for name in one if one[name] != other[name]] == ["state.json"], "which tells of times"
    events = [(report["event"], report.get("step")) for report in ranks.reports if report["rank"] == 0]
    assert events.index(("step", 8)) < events.index(("saved", 4)) < events.index(("saved", 8))
    assert "beside training, which stood still for" in ranks.logs[0].read_text()
    assert not list((tmp_path / "beside" / "checkpoints").glob(".tmp-*"))


def test_a_stop_waits_for_the_save_beside_training(tmp_path: Path) -> None:
    run = config(train__max_steps=100_000, checkpoint__every_steps=4, checkpoint__asynchronous=True)
    ranks = start(run, tmp_path, 2)
    ranks.wait_for_step(40)
    (tmp_path / "stop").touch()
    assert ranks.wait() == [75, 75], ranks.text()
    stopped = int(ranks.logs[0].read_text().split("stops at step ")[1].split(":")[0])
    assert (tmp_path / "checkpoints" / "latest").read_text() == f"step-{stopped:08d}\n"
    manifest.read_manifest(checkpoint(tmp_path, stopped))
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


def kill_rank_1_while_step_8_is_written() -> None:
    from trainpkg.runtime.checkpoints.saving import Beside, Part

    plain = Beside.write

    def write(self: Beside, part: Part) -> None:
        plain(self, part)
        if "step-00000008" in part.folder.name and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)

    Beside.write = write  # type: ignore[method-assign]


def kill_the_scribe_of_rank_1_before_step_8() -> None:
    from trainpkg.runtime.checkpoints.saving import Beside, Part

    plain = Beside.write

    def write(self: Beside, part: Part) -> None:
        if "step-00000008" in part.folder.name and os.environ["RANK"] == "1":
            assert self._process is not None
            self._process.kill()
            self._process.wait()
        plain(self, part)

    Beside.write = write  # type: ignore[method-assign]


@pytest.mark.failure("F107")
def test_kill_while_a_save_goes_on_beside_training(tmp_path: Path) -> None:
    run = config(train__max_steps=12, checkpoint__asynchronous=True)
    ranks = start(run, tmp_path, 2, before=kill_rank_1_while_step_8_is_written)
    assert sorted(ranks.wait()) == [-9, 3], ranks.text()
    there = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert there - {".tmp-step-00000008-1.0"} == {"latest", "step-00000004"}, "what waits may not have been begun"
    ranks = run_ranks(run, tmp_path, 2, attempt=2)
    assert "goes on from step-00000004" in ranks.text()
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


def test_what_writes_beside_training_is_killed(tmp_path: Path) -> None:
    run = config(train__max_steps=12, checkpoint__asynchronous=True, checkpoint__keep_last=3)
    ranks = start(run, tmp_path, 2, before=kill_the_scribe_of_rank_1_before_step_8)
    assert ranks.wait() == [3, 1], "an accident of rank 1, which the launcher restarts, and no user's mistake"
    assert "writes checkpoints beside training ended with status -9" in ranks.logs[1].read_text(), ranks.text()
    assert (tmp_path / "checkpoints/latest").read_text() == "step-00000004\n"
    assert not (tmp_path / "checkpoints/step-00000008").exists()


def test_every_so_many_minutes_on_the_clock_of_rank_0(tmp_path: Path) -> None:
    run = config(checkpoint__every_steps=1000, checkpoint__every_minutes=1e-9, checkpoint__keep_last=9)
    run_ranks(run, tmp_path, 2)
    # Records are written every second step, and there the ranks meet at least.
    assert all(checkpoint(tmp_path, step).is_dir() for step in (2, 4, 6, 8))


def be_chooser() -> None:
    """Instead of evaluating: load what `choices.json` in the run directory asks for, one after the other."""
    from trainpkg.runtime import rank

    rank.STAGES["evaluate"] = __name__


def main(ctx: Any, run: Run, spec: Any) -> str:
    """As a stage's: [(what was loaded, or the sentence, a sum over the weights)] in choices.json's place."""
    from trainpkg import models
    from trainpkg.errors import UserError
    from trainpkg.runtime.checkpoints import tensors
    from trainpkg.runtime.checkpoints.checkpoint import Checkpoints
    from trainpkg.runtime.parallel import spread
    from trainpkg.runtime.state import RunningLoss, TrainState

    run_dir = Path(spec["run_dir"])
    found: list[Any] = []
    for which, weights in json.loads((run_dir / "choices.json").read_text()):
        strategy = spread(ctx, run, lambda: models.build(run.model))
        state = TrainState()
        checkpoints = Checkpoints(ctx, run_dir / "checkpoints", run, strategy, None, state, RunningLoss(ctx.device))
        try:
            name, kind = checkpoints.load_weights(which, weights)
        except UserError as error:
            found.append(str(error))
        else:
            whole = tensors.full_weights(strategy.module)
            found.append([name, kind, state.step, sum(float(tensor.double().sum()) for tensor in whole.values())])
    if ctx.is_main:
        (run_dir / "chosen.json").write_text(json.dumps(found))
    return "finished"


def choose(run: Run, run_dir: Path, choices: list[tuple[str, str]]) -> list[Any]:
    (run_dir / "choices.json").write_text(json.dumps(choices))
    run_ranks(run, run_dir, 2, stage="evaluate", attempt=2, before=be_chooser)
    found: list[Any] = json.loads((run_dir / "chosen.json").read_text())
    return found


def total(path: Path) -> float:
    return sum(float(tensor.double().sum()) for tensor in load_file(path).values())


def test_named_checkpoints_and_weights(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    keys = {"strategy": "fsdp", "ema__decay": 0.9, "checkpoint__keep_best": 1, "logging__eval_every_steps": 2}
    run = config("gpt", **keys, checkpoint__every_steps=2, train__max_steps=8)
    run_ranks(run, run_dir, 2)
    model = run_dir / "model"
    best = json.loads((run_dir / "train.json").read_text())["best"]["step"]
    assert (run_dir / "checkpoints" / "best").read_text() == f"step-{best:08d}\n"
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(checkpoint(run_dir, 8), elsewhere)
    shard = checkpoint(run_dir, 6) / "rank-00000.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    of_last, of_average = total(model / "model.safetensors"), total(model / "ema.safetensors")
    assert of_last != of_average
    found = choose(run, run_dir, [
        ("last", "raw"), ("last", "auto"), (str(elsewhere), "ema"), ("best", "raw"), ("6", "raw"), ("5", "raw"),
        (str(tmp_path), "raw"),
    ])  # fmt: skip
    assert found[0] == ["step-00000008", "raw", 8, pytest.approx(of_last, abs=1e-9)]
    assert found[1] == ["step-00000008", "ema", 8, pytest.approx(of_average, abs=1e-9)]
    assert found[2] == ["elsewhere", "ema", 8, found[1][3]]
    assert found[3][:3] == [f"step-{best:08d}", "raw", best]
    there = f"{run_dir / 'checkpoints'} holds step-00000008, step-00000006"
    assert found[4].startswith(f"evaluate.checkpoint = '6': {shard} has ") and there in found[4]
    assert found[5] == f"evaluate.checkpoint = '5': there is no directory {checkpoint(run_dir, 5)}. {there}"
    assert "manifest.json is missing" in found[6] and there in found[6]


def test_evaluation_says_what_it_is_of(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"train__max_steps": 4, "checkpoint__every_steps": 2, "ema__decay": 0.5}
    run_ranks(config(**keys), tmp_path, 1)
    for which, weights, kind in (("2", "raw", "raw"), ("last", "auto", "ema")):
        run = config(**keys, evaluate__checkpoint=which, evaluate__weights=weights)
        run_ranks(run, tmp_path, 1, stage="evaluate", attempt=2)
        found = json.loads((tmp_path / "evaluation.json").read_text())
        step = 2 if which == "2" else 4
        assert [found[key] for key in ("checkpoint", "weights", "step")] == [f"step-{step:08d}", kind, step]
