"""Judge a run on its held-out samples: exact on any number of ranks.

Every rank runs the same number of forward passes over equal batches; what is missing at the end is padded and masked,
and sums and counts add up in float64. So a data set that the ranks do not divide gives the numbers of one rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainpkg import data, models, tasks
from trainpkg.config import Run
from trainpkg.data.loading import loaded
from trainpkg.data.order import evaluation_passes
from trainpkg.errors import UserError
from trainpkg.runtime import manifest, mesh, metrics
from trainpkg.runtime.checkpoints.checkpoint import Checkpoints
from trainpkg.runtime.distributed import RankContext, all_sum, require_equal
from trainpkg.runtime.parallel import Single, spread
from trainpkg.runtime.state import RunningLoss, TrainState


@torch.no_grad()
def evaluate(
    ctx: RankContext,
    strategy: Single,
    task: tasks.Task,
    splits: data.Splits,
    batch: int,
    stops: Callable[[], bool] | None = None,
) -> Tensor | None:
    """The task's sums over all held-out samples, on the CPU, equal on all ranks. Collective.

    `batch`: samples per pass and rank. `stops` is asked before each pass, and ends the evaluation without a result:
    None.
    """
    with ctx.reporter.phase("evaluating"):
        return _evaluate(ctx, strategy, task, splits, batch, stops)


def _evaluate(
    ctx: RankContext,
    strategy: Single,
    task: tasks.Task,
    splits: data.Splits,
    batch: int,
    stops: Callable[[], bool] | None,
) -> Tensor | None:
    strategy.broadcast_buffers()
    strategy.module.eval()
    held_out = splits.validation
    total = torch.zeros(task.num_sums, dtype=torch.float64, device=ctx.device)
    passes = evaluation_passes(held_out.num_samples, batch, strategy.data_rank, strategy.data_world_size)
    last = held_out.num_samples - 1
    requests = ((torch.arange(first, first + batch).clamp(max=last), None) for first, _ in passes)
    batches = loaded(held_out, requests, ctx.device, splits.workers)
    for (_, num_real), samples in zip(passes, batches, strict=True):
        if stops is None:
            ctx.reporter.alive()
        elif stops():
            strategy.module.train()
            return None
        is_real = (torch.arange(batch) < num_real).to(ctx.device)
        with strategy.autocast():
            total += task.sums(strategy.module, samples, is_real)
    strategy.module.train()
    sums = all_sum(ctx, total).cpu()
    if sums[-1] != held_out.num_samples:
        raise UserError(
            f"the task's sums count {sums[-1]:g} of {held_out.num_samples} held-out samples: the last of its sums is "
            "the number of samples for which is_real is set"
        )
    return sums


def main(ctx: RankContext, run: Run, spec: Mapping[str, Any]) -> str:
    """Evaluate the checkpoint that evaluate.checkpoint names; rank 0 writes `out`.

    UserError where it is missing or damaged, and for the last one of a run that is not finished.
    """
    run = for_these_ranks(ctx, run)
    strategy = spread(ctx, run, lambda: models.build(run.model))
    splits = data.build(run, ctx.device)
    task = tasks.build(run, strategy.pieces, splits)
    require_equal(ctx, "the data's digest", splits.digest)
    state = TrainState()
    folder = Path(spec["run_dir"]) / "checkpoints"
    checkpoints = Checkpoints(ctx, folder, run, strategy, None, state, RunningLoss(ctx.device), splits.digest)
    name, weights = checkpoints.load_weights(run.evaluate.checkpoint, run.evaluate.weights)
    if run.evaluate.checkpoint == "last":
        require_trained(state.step, run.train.max_steps, folder, checkpoints.passed_over)
    # A request to stop is not heard here: nothing of an evaluation can be saved.
    sums = evaluate(ctx, strategy, task, splits, run.evaluate.batch)
    assert sums is not None
    found, tables = task.metrics(sums, splits.facts), task.tables(sums)
    result, notes = metrics.strict({
        "run": run.run,
        "recipe": run.recipe,
        "fingerprint": run.fingerprint(),
        "step": state.step,
        "checkpoint": name,
        "weights": weights,
        "data_digest": splits.digest,
        "world_size": ctx.world_size,
        "num_samples": int(sums[-1]),
        "metrics": found,
        "tables": [f"{name}.parquet" for name in tables],
    })  # fmt: skip
    if ctx.is_main:
        ctx.say(
            f"{name} ({weights}) on {int(sums[-1])} samples: " + ", ".join(f"{k} {v:.6g}" for k, v in found.items())
        )
        write_tables(Path(spec["out"]).parent, tables)
        manifest.replace_synced(Path(spec["out"]), json.dumps({**result, "notes": notes}, indent=1) + "\n")
    return "finished"


def write_tables(folder: Path, tables: Mapping[str, tasks.Columns]) -> None:
    """Each as NAME.parquet, whole or not at all."""
    import pyarrow  # takes a while, and one rank of one stage needs it
    import pyarrow.parquet

    for name, columns in tables.items():
        waiting = folder / f".{name}.parquet.tmp"
        pyarrow.parquet.write_table(pyarrow.table(columns), waiting)
        manifest.publish_synced(waiting, folder / f"{name}.parquet")


def require_trained(step: int, max_steps: int, folder: Path, passed_over: list[str]) -> None:
    """UserError for the weights of an unfinished run: beside those of finished ones its numbers would mislead."""
    if step >= max_steps:
        return
    found = f"the newest whole checkpoint in {folder} is of step {step}, train.max_steps = {max_steps}"
    if not passed_over:
        raise UserError(f"{found}: the run is not finished; train it to its end first")
    damaged = ", ".join(str(folder / name) for name in passed_over)
    raise UserError(
        f"{found}, and newer is but what is damaged: {damaged}. Delete it, and train.json and finished.json in "
        f"{folder.parent}, then train the run again: it goes on from step {step}"
    )


def for_these_ranks(ctx: RankContext, run: Run) -> Run:
    """Without what an evaluation on other ranks than the training's cannot keep. Collective.

    `strategy: single`: here several ranks share the samples, each with a whole model. `sequence_parallel`: only where
    it divides the ranks of each node.
    """
    changes: dict[str, Any] = {"strategy": None} if run.strategy == "single" else {}
    size = run.sequence_parallel
    if any(count % size for count in mesh.ranks_of_nodes(ctx)):
        changes["sequence_parallel"] = 1
        if ctx.is_main:
            ctx.warn(f"sequence_parallel = {size} does not divide the ranks of each node: sequences stay whole here")
    return run.model_copy(update=changes)
