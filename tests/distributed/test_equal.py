"""The same numbers from every strategy and number of ranks, from interrupted and uninterrupted runs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.start import config, records, run_ranks, start, weights

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


def assert_close(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def assert_identical(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One process, the reference of all comparisons."""
    places = {}
    for base in ("digits", "gpt"):
        places[base] = tmp_path_factory.mktemp(f"single-{base}")
        run_ranks(config(base, strategy="single"), places[base], 1)
    return places


@pytest.mark.parametrize("base", ["digits", "gpt"])
@pytest.mark.parametrize(
    ("strategy", "num_ranks", "more"),
    [
        ("ddp", 2, {}),
        ("ddp", 3, {"train__accumulation": 2}),
        ("fsdp", 2, {"train__accumulation": 2}),
        ("fsdp", 2, {"train__accumulation": 2, "fsdp__reduce_every_microbatch": False}),
        ("fsdp", 3, {"fsdp__reshard_after_forward": False}),
        ("single", 1, {"train__accumulation": 4}),
    ],
)
def test_strategies_equal_one_process(
    single: dict[str, Path], tmp_path: Path, base: str, strategy: str, num_ranks: int, more: dict[str, Any]
) -> None:
    run = config(base, strategy=strategy, **more)
    run_ranks(run, tmp_path, num_ranks)
    assert_close(weights(tmp_path), weights(single[base]), 2e-4)
    for one, other in zip(records(tmp_path), records(single[base]), strict=True):
        assert one["step"] == other["step"] and one["samples"] == other["samples"]
        if one["kind"] == "train":
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
            assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-2)


def say_batch_sizes() -> None:
    from trainpkg.tasks.images import Images

    plain = Images.loss

    def loss(self: Images, model: Any, batch: Any) -> torch.Tensor:
        print(f"batch of {len(batch[1])};", flush=True)
        return plain(self, model, batch)

    Images.loss = loss  # type: ignore[method-assign]


def test_no_pass_of_training_is_larger_than_a_micro_batch(tmp_path: Path) -> None:
    run = config("digits", strategy="ddp", train__accumulation=4, train__max_steps=2)
    ranks = run_ranks(run, tmp_path, 2, before=say_batch_sizes)
    for log in ranks.logs:
        sizes = re.findall(r"batch of (\d+);", log.read_text())
        assert sizes == ["6"] * (1 + 2 * 4), "the pass that warms up, then four a step"


def say_what_stays_whole() -> None:
    """Print, after each pass, how many gradients a rank keeps for all shards instead of its own."""
    from torch.distributed.fsdp import FSDPModule

    from trainpkg.runtime.parallel import Fsdp

    plain = Fsdp.accumulating

    @contextlib.contextmanager
    def accumulating(self: Fsdp, last: bool) -> Iterator[None]:
        with plain(self, last):
            yield
        groups = [m._get_fsdp_state()._fsdp_param_group for m in self.module.modules() if isinstance(m, FSDPModule)]
        whole = [p for group in groups for p in group.fsdp_params if p._unsharded_param.grad is not None]
        print(f"whole gradients kept: {bool(whole)};", flush=True)

    Fsdp.accumulating = accumulating  # type: ignore[method-assign]


@pytest.mark.failure("F110")
@pytest.mark.parametrize(("each", "kept"), [(True, ["False"] * 2), (False, ["True", "False"])])
def test_sharded_gradients_are_whole_in_no_micro_batch_unless_asked(
    tmp_path: Path, each: bool, kept: list[str]
) -> None:
    more = {"train__accumulation": 2, "train__max_steps": 2, "fsdp__reduce_every_microbatch": each}
    ranks = run_ranks(config("gpt", strategy="fsdp", **more), tmp_path, 2, before=say_what_stays_whole)
    for log in ranks.logs:
        assert re.findall(r"whole gradients kept: (\w+);", log.read_text())[-4:] == kept * 2


def die_at_step_6() -> None:
    """SIGKILL in the middle of a step, on rank 1 (or the only one)."""
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) // 2):
        from trainpkg.runtime.report import Reporter

        plain = Reporter.step

        def step(self: Reporter, number: int, total: int) -> None:
            plain(self, number, total)
            if number == 6:
                os.kill(os.getpid(), signal.SIGKILL)

        Reporter.step = step  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("base", "strategy", "num_ranks"),
    [("digits", "ddp", 3), ("gpt", "fsdp", 2), ("gpt", "ddp", 3), ("digits", "single", 1)],
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, base: str, strategy: str, num_ranks: int) -> None:
    # Dropout on, records of three steps: the save at step 4 lies inside an interval, whose loss sum must go on.
    run = config(base, strategy=strategy, model__dropout=0.2, logging__every_steps=3, train__max_steps=9)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_ranks(run, whole, num_ranks)
    ranks = start(run, killed, num_ranks, before=die_at_step_6)
    statuses = ranks.wait()
    assert sorted(statuses)[0] == -signal.SIGKILL and set(statuses) <= {-signal.SIGKILL, 3}, ranks.text()
    assert all(report["victim"] for report in ranks.events("exception")), ranks.events("exception")
    again = run_ranks(run, killed, num_ranks, attempt=2)
    assert "goes on from step-00000004" in again.text()
    assert_identical(weights(killed), weights(whole))
    assert records(killed) == records(whole)


def normalise_batches_and_die_at_6() -> None:
    """Running statistics differ from rank to rank: here rank 0's must count, before and after a resume."""
    normalise_batches()
    die_at_step_6()


def normalise_batches() -> None:
    from torch import nn

    from trainpkg import models

    plain = models.build

    def build(model: Any) -> nn.Module:
        net = plain(model)
        for block in net.blocks:  # type: ignore[union-attr]
            block.layers[1] = nn.BatchNorm2d(block.layers[1].num_channels)
        return net

    models.build = build


@pytest.mark.parametrize(("strategy", "num_ranks"), [("ddp", 3), ("fsdp", 2)])
def test_running_statistics_are_rank_0s(tmp_path: Path, strategy: str, num_ranks: int) -> None:
    run = config("digits", strategy=strategy, train__max_steps=7, logging__eval_every_steps=7)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_ranks(run, whole, num_ranks, before=normalise_batches)
    start(run, killed, num_ranks, before=normalise_batches_and_die_at_6).wait()
    run_ranks(run, killed, num_ranks, attempt=2, before=normalise_batches)
    assert any("running_mean" in name for name in weights(whole))
    assert_identical(weights(killed), weights(whole))
    assert records(killed) == records(whole)


@pytest.mark.failure("F082")
@pytest.mark.failure("F083")
@pytest.mark.failure("F085")
def test_stop_signal_saves_and_asks_to_be_run_again(tmp_path: Path) -> None:
    run = config("digits", strategy="ddp", train__max_steps=400, checkpoint__every_steps=1000, model__dropout=0.1)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_ranks(run, whole, 2)
    ranks = start(run, stopped, 2)
    ranks.wait_for_step(5)
    os.kill(ranks.processes[1].pid, signal.SIGUSR2)
    assert ranks.wait() == [75, 75], ranks.text()
    assert {report["verdict"] for report in ranks.events("done")} == {"again"}
    step = ranks.events("done")[0]["step"]
    assert 5 <= step < 400 and (stopped / "checkpoints" / f"step-{step:08d}").is_dir()
    run_ranks(run, stopped, 2, attempt=2)
    assert_identical(weights(stopped), weights(whole))
    assert records(stopped) == records(whole)


@pytest.mark.failure("F082")
def test_stop_file_stops_all_ranks(tmp_path: Path) -> None:
    run = config("digits", strategy="ddp", train__max_steps=100_000, checkpoint__every_steps=100_000)
    ranks = start(run, tmp_path, 2)
    ranks.wait_for_step(3)
    (tmp_path / "stop").touch()
    assert ranks.wait() == [75, 75], ranks.text()
    assert "/stop, honoured after " in ranks.logs[0].read_text() and not (tmp_path / "stop").exists()
    assert "asked for on another rank" in ranks.logs[1].read_text()


@pytest.mark.failure("F104")
@pytest.mark.failure("F105")
@pytest.mark.parametrize(("strategy", "then"), [("ddp", "fsdp"), ("fsdp", "ddp")])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_saved_on_two_ranks_goes_on_on_one_and_three(
    single: dict[str, Path], tmp_path: Path, strategy: str, then: str, num_ranks: int
) -> None:
    run_ranks(config("gpt", strategy=strategy), tmp_path, 2, before=die_after_save_at_4, expect=-signal.SIGKILL)
    run = config("gpt", strategy="single" if num_ranks == 1 and then == "ddp" else then)
    again = run_ranks(run, tmp_path, num_ranks, attempt=2)
    assert "goes on from step-00000004" in again.text()
    assert_close(weights(tmp_path), weights(single["gpt"]), 2e-4)
    for one, other in zip(records(tmp_path), records(single["gpt"]), strict=True):
        loss, other_loss = (record.get("loss") or record["metrics"]["loss"] for record in (one, other))
        assert loss == pytest.approx(other_loss, rel=1e-3)
        assert (one["step"], one["samples"]) == (other["step"], other["samples"])


def die_after_save_at_4() -> None:
    """All ranks end as if killed, right after the checkpoint of step 4."""
    from trainpkg.runtime.checkpoints.checkpoint import Checkpoints

    plain = Checkpoints.maybe_save

    def maybe_save(self: Checkpoints, step: int) -> None:
        plain(self, step)
        if step == 4:
            torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.maybe_save = maybe_save  # type: ignore[method-assign]
