"""Prove in under a minute that these nodes can train: one check after the other, each by all ranks together.

Every check ends with the same outcome on all ranks, since it is made from what all of them gathered. A rank that never
answers ends the job before this point, in `distributed`. The result is JSON with a readable table beside it.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainpkg import contract, data, models, tasks
from trainpkg.config import Run
from trainpkg.config.names import is_own
from trainpkg.data.feed import Feed
from trainpkg.errors import UserError
from trainpkg.runtime import checks, manifest
from trainpkg.runtime.checkpoints.checkpoint import Checkpoints
from trainpkg.runtime.checks import Outcome
from trainpkg.runtime.distributed import RankContext, all_sum, gather_rows
from trainpkg.runtime.mesh import local
from trainpkg.runtime.parallel import Single, spread
from trainpkg.runtime.state import RunningLoss, TrainState
from trainpkg.runtime.update import Update

NUM_STEPS = 8


@dataclass
class Smoke:
    """What the checks share."""

    ctx: RankContext
    run: Run
    launch_dir: Path
    trained: tuple[Single, Update] | None = None


def main(ctx: RankContext, run: Run, spec: Mapping[str, Any]) -> str:
    """Run all checks; UserError with one sentence where one fails. Rank 0 writes the result either way."""
    started, smoke, rows = time.time(), Smoke(ctx, run, Path(spec["launch_dir"])), []
    proofs: dict[str, Callable[[], Outcome]] = {
        "nodes": lambda: nodes(smoke),
        "places": lambda: checks.places(ctx, smoke.launch_dir),
        "software": lambda: checks.software(ctx),
        "reduction": lambda: checks.reduction(ctx),
        "network": lambda: checks.network(ctx, run.smoke.megabytes),
        "shared directory": lambda: checks.shared_directory(ctx, smoke.launch_dir),
    }
    if not run.own_program:
        proofs |= {"training": lambda: training(smoke), "checkpoint": lambda: checkpoint(smoke)}
    failed: tuple[str, str] | None = None
    for name, prove in proofs.items():
        began = time.monotonic()
        try:
            outcome = prove()
        except UserError as error:  # a full disk, say: raised by all ranks, so all end here
            outcome = Outcome(str(error), "", {})
        seconds = round(time.monotonic() - began, 3)
        rows.append({"check": name, "ok": outcome.problem is None, "seconds": seconds, "text": outcome.text}
                    | {"problem": outcome.problem, **outcome.facts})  # fmt: skip
        if outcome.problem is not None:
            failed = (name, outcome.problem)
            break
    if ctx.is_main:
        write_result(smoke, Path(spec["out"]), rows, started, failed is None)
    if failed is not None:
        raise UserError(f"smoke test failed at '{failed[0]}': {failed[1]}")
    return "finished"


def write_result(smoke: Smoke, out: Path, rows: list[dict[str, Any]], started: float, ok: bool) -> None:
    """The JSON at `out`, or, for a failure, in the launch directory: Snakemake deletes outputs of failed jobs."""
    ctx = smoke.ctx
    table = "\n".join(
        f"{'ok  ' if r['ok'] else 'FAIL'}  {r['check']:<17} {r['seconds']:7.2f} s  {r['problem'] or r['text']}"
        for r in rows
    )
    ctx.say(table)
    table = "\n\n".join([table, *(row["table"] for row in rows if "table" in row)])
    result = {
        "ok": ok,
        "run": smoke.run.run,
        "world_size": ctx.world_size,
        "num_nodes": ctx.num_nodes,
        "strategy": smoke.run.strategy_for(ctx.world_size),
        "backend": ctx.backend,
        "device": ctx.device.type,
        "started": started,
        "seconds": time.time() - started,
        "checks": rows,
    }
    path = out if ok else smoke.launch_dir / f"{out.stem}.failed.json"
    manifest.replace_synced(path.with_suffix(".txt"), table + "\n")
    manifest.replace_synced(path, json.dumps(result, indent=1) + "\n")


def nodes(smoke: Smoke) -> Outcome:
    """What `launch` heard of the nodes before any rank ran; bad rows ended the job there."""
    path = smoke.launch_dir / "nodes.json"
    found = json.loads(path.read_text()) if smoke.ctx.is_main and path.exists() else {}
    reports = found.get("nodes", {})
    rows = [row for report in reports.values() for row in report] + found.get("differences", [])
    num_warnings = sum(row["verdict"] != "ok" for row in rows)
    text = f"{len(rows)} rows on {len(reports)} nodes, {num_warnings} warnings (all of them below)"
    return Outcome(None, text, found)


def training(smoke: Smoke) -> Outcome:
    """A few steps of the run's own strategy, model and precision on one batch; its loss must fall."""
    ctx, run = smoke.ctx, smoke.run
    strategy, update = _fresh(smoke)
    splits = data.build(run, ctx.device)
    task = tasks.build(run, strategy.pieces, splits)
    num_shares = strategy.data_world_size
    batch_size = max(1, min(run.train.global_batch // num_shares, 8))
    train = run.train.model_copy(update={"global_batch": batch_size * num_shares, "accumulation": 1})
    batches = Feed(splits, run.seed, train, ctx.device, strategy.data_rank, num_shares)
    _, _, batch = next(batches.step(0))  # by the run's workers, where it has some: here it shows whether they can
    batches.close()
    strategy.warm_up(task.loss, batch)
    if is_own(run.task):
        contract.judge(task, strategy, splits, ctx.device)
    losses = []
    for step in range(NUM_STEPS):
        update.begin(step)
        with strategy.accumulating(True):
            with strategy.autocast():
                loss = task.loss(strategy.model, batch)
            update.scaled(loss).backward()  # type: ignore[no-untyped-call]
        update.step(step + 1, loss)
        losses.append(all_sum(ctx, loss.detach().double()).item() / ctx.world_size)
        ctx.reporter.step(step + 1, NUM_STEPS)
    falls = statistics.mean(losses[-2:]) < losses[0]
    text = f"{strategy.name}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {NUM_STEPS} steps"
    problem = None if falls else f"the loss of one repeated batch does not fall: {[round(x, 4) for x in losses]}"
    smoke.trained = strategy, update
    return Outcome(problem, text, {"losses": losses, "data_digest": splits.digest})


def checkpoint(smoke: Smoke) -> Outcome:
    """Save what was trained, load it into a fresh model, compare every weight and moment."""
    ctx, run, folder = smoke.ctx, smoke.run, smoke.launch_dir / f"checkpoint-{smoke.ctx.generation}"
    assert smoke.trained is not None, "training comes first"
    strategy, update = smoke.trained
    state = TrainState(step=NUM_STEPS)
    began = time.monotonic()
    Checkpoints(ctx, folder, run, strategy, update, state, RunningLoss(ctx.device)).save(NUM_STEPS)
    save_s = time.monotonic() - began
    again, update_again = _fresh(smoke)
    found = Checkpoints(ctx, folder, run, again, update_again, TrainState(), RunningLoss(ctx.device)).resume()
    load_s = time.monotonic() - began - save_s
    pairs = zip(_tensors(strategy, update), _tensors(again, update_again), strict=True)
    num_wrong = sum(not torch.equal(one, other) for one, other in pairs)
    wrong = {rank: int(row[0]) for rank, row in enumerate(gather_rows(ctx, [num_wrong])) if row[0]}
    if ctx.is_main:
        shutil.rmtree(folder, ignore_errors=True)
    problem = f"tensors differ from what was saved (it {found}): number per rank {wrong}" if wrong else None
    return Outcome(
        problem, f"saved in {save_s:.2f} s, loaded in {load_s:.2f} s, equal", {"save_s": save_s, "load_s": load_s}
    )


def _fresh(smoke: Smoke) -> tuple[Single, Update]:
    """The run's model and strategy, at a learning rate and without the dropout that could hide a falling loss."""

    def build() -> nn.Module:
        model = models.build(smoke.run.model)
        for part in model.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = 0.0
            elif isinstance(getattr(part, "dropout", None), float):  # of attention, which is a function
                part.dropout = 0.0  # type: ignore[assignment]
        return model

    strategy = spread(smoke.ctx, smoke.run, build)
    optim = smoke.run.optim.model_copy(update={"lr": 1e-3, "lr_scaling": "none", "base_batch": None})
    run = smoke.run.model_copy(update={"optim": optim})
    return strategy, Update(run, strategy)


def _tensors(strategy: Single, update: Update) -> list[Tensor]:
    """This rank's part of weights and of what the optimizers keep."""
    kept = [value for optimizer in update.optimizers for state in optimizer.state.values() for value in state.values()]
    return [local(tensor.detach()) for tensor in (*strategy.module.parameters(), *kept)]
