"""Train one run from wherever it stands to its last step: read top to bottom, one loop.

Kept by its parts: when to save (`checkpoint`), when ranks meet (`signals`), how the model is spread (`parallel`), which
samples come when (`data.feed`). Here: the order in which these things happen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from trainpkg import data, export, models, named, result, tasks
from trainpkg.config import Run
from trainpkg.data.feed import Feed
from trainpkg.errors import UserError
from trainpkg.evaluate import evaluate
from trainpkg.runtime import insight, manifest, metrics, trackers
from trainpkg.runtime.checkpoints.checkpoint import Checkpoints
from trainpkg.runtime.distributed import RankContext, StopPoll, gather_objects, gather_rows, require_equal
from trainpkg.runtime.parallel import Single, spread
from trainpkg.runtime.seeding import mix, seed_all
from trainpkg.runtime.signals import Cadence
from trainpkg.runtime.state import RunningLoss, TrainState
from trainpkg.runtime.update import NoAverage, Update


@dataclass
class Training:
    """The parts of one training, put together by `prepare`."""

    ctx: RankContext
    run: Run
    task: tasks.Task
    splits: data.Splits
    feed: Feed
    strategy: Single
    update: Update
    state: TrainState
    loss: RunningLoss
    checkpoints: Checkpoints
    records: metrics.MetricsFile
    progress: metrics.Progress
    meter: metrics.Meter
    cadence: Cadence
    window: insight.NoWindow
    num_parameters: int


def main(ctx: RankContext, run: Run, spec: Mapping[str, Any]) -> str:
    """Returns `finished`, or `again` where a stop was asked for and the state is saved. Collective."""
    run_dir, started = Path(spec["run_dir"]), time.time()
    training = prepare(ctx, run, run_dir)
    begun = training.checkpoints.resume()
    if ctx.is_main:
        ctx.say(begun)
    verdict = loop(training)
    training.window.close()
    training.feed.close()
    if verdict == "finished":
        finish(training, run_dir, Path(spec["out"]), started)
    training.records.close(verdict)
    return verdict


def prepare(ctx: RankContext, run: Run, run_dir: Path) -> Training:
    """Build every part, equal on all ranks; collective. UserError where batch and ranks do not fit."""
    require_samples(run, ctx.world_size // run.sequence_parallel)
    splits = data.build(run, ctx.device)
    require_equal(ctx, "the run's fingerprint", run.fingerprint())
    require_equal(ctx, "the data's digest", splits.digest)
    strategy = spread(ctx, run, lambda: models.build(run.model))
    num_parameters = sum(p.numel() for p in strategy.module.parameters())
    task, update = tasks.build(run, strategy.pieces, splits), Update(run, strategy)
    names = (run.model.name, run.data.name, run.task, getattr(run.data, "transform", None))
    require_equal(ctx, "the code of model, data, transform and task", named.digest(filter(None, names)))
    seed_all(mix("rank", run.seed, ctx.rank))  # from here on each rank draws its own dropout
    feed = Feed(splits, run.seed, run.train, ctx.device, strategy.data_rank, strategy.data_world_size)
    strategy.warm_up(task.loss, feed.first())
    state, loss = TrainState(), RunningLoss(ctx.device)
    checkpoints = Checkpoints(ctx, run_dir / "checkpoints", run, strategy, update, state, loss, splits.digest)
    checkpoints.clear_interrupted()
    records = metrics.MetricsFile(ctx, run_dir / "metrics.jsonl", trackers.build(ctx, run, run_dir))
    return Training(
        ctx, run, task, splits, feed, strategy, update, state, loss, checkpoints,
        records, metrics.Progress(ctx, run.train.max_steps),
        metrics.Meter(ctx.device), Cadence(), insight.window(run.profile, ctx, run_dir / "profile"), num_parameters,
    )  # fmt: skip


def require_samples(run: Run, data_world_size: int) -> None:
    """UserError where one of so many shares of the batch would have no sample in a micro-batch."""
    batch, count = run.train.global_batch, run.train.accumulation
    share = batch // max(data_world_size, 1)
    if share < count:
        raise UserError(
            f"train.global_batch = {batch} leaves {share} sample(s) for each of {data_world_size} ranks, or groups of "
            f"ranks that share sequences: too few for train.accumulation = {count} micro-batches"
        )


def loop(t: Training) -> str:
    """Step, record, evaluate, save, stop: in this order, each at a step boundary that all ranks share."""
    run, state, max_steps = t.run, t.state, t.run.train.max_steps
    time_before, entered = state.time_s, time.monotonic()

    def tick() -> None:
        state.time_s = time_before + time.monotonic() - entered

    if state.evaluation_due and not evaluate_now(t):
        t.ctx.stop.honoured(state.step)  # saved when it was given up the first time
        return "again"
    t.ctx.reporter.busy("first step")  # may compile for long
    while state.step < max_steps:
        step = state.step + 1
        is_last = step >= max_steps
        records = is_last or step % run.logging.every_steps == 0
        t.window.step(step)
        t.meter.begin()
        t.update.begin(state.step)
        for last, num_samples, batch in t.meter.waiting(t.feed.step(state.samples)):
            with t.strategy.accumulating(last):
                with t.strategy.autocast():
                    loss = t.task.loss(t.strategy.model, batch)
                # Ranks are averaged, each with as much weight as it has samples of the global batch.
                share = num_samples * t.strategy.data_world_size / run.train.global_batch
                t.update.scaled(loss * share).backward()  # type: ignore[no-untyped-call]
            t.loss.add(loss, num_samples / t.strategy.pieces.size)
        grad_norm = t.update.step(step, loss, records)
        state.advance(run.train.global_batch, t.splits.train.tokens_per_sample)
        meets = records or t.cadence.due(state.step)
        t.meter.end(wait=meets)
        state.train_time_s += t.meter.last_s
        t.ctx.reporter.step(state.step, max_steps)

        stops = False
        tick()  # before the record of this step is written, and again before each that takes its time from the state
        if meets:
            stops = meet(t, grad_norm, records)
        tick()
        state.evaluation_due = is_last or state.step % run.logging.eval_every_steps == 0
        if state.evaluation_due and not stops:
            stops = not evaluate_now(t)
            tick()
        t.checkpoints.maybe_save(state.step)
        if stops and (not is_last or state.evaluation_due):
            t.checkpoints.save(state.step)
            t.ctx.stop.honoured(state.step)
            return "again"
    return "finished"


def meet(t: Training, grad_norm: Tensor | None, records: bool) -> bool:
    """All ranks exchange one row: who wants to stop, loss sums, times, memory. Returns whether all stop.

    The only place in the loop, besides evaluating and saving, that waits for the device.
    """
    meter, state = t.meter, t.state
    step_s = meter.steps_s / max(meter.num_steps, 1)
    own = [
        float(t.ctx.stop.poll()),
        t.loss.total.item(),
        t.loss.count,
        step_s,
        meter.data_s,
        metrics.memory_mb(t.ctx.device),
        t.update.first_bad(),
        t.checkpoints.wish(),
    ]
    rows = gather_rows(t.ctx, own)
    stops, totals, counts, steps_s, data_s, memories, bad_steps, wishes = zip(*rows, strict=True)
    if any(bad_steps):
        raise t.update.refuse(int(min(filter(None, bad_steps))))
    t.checkpoints.agree(wishes)
    t.cadence.met(state.step, max(steps_s))
    if records:
        assert grad_norm is not None
        told = t.update.record()
        state.last_loss = sum(totals) / sum(counts)
        rate = meter.num_steps * t.run.train.global_batch / meter.steps_s
        tokens = t.splits.train.tokens_per_sample
        record = {
            "step": state.step,
            "samples": state.samples,
            "tokens": state.tokens if tokens else None,
            "time_s": state.time_s,
            "loss": state.last_loss,
            "lr": t.update.lr,
            "grad_norm": grad_norm.item(),
            "samples_per_second": rate,
            "tokens_per_second": rate * tokens if tokens else None,
            "step_time_s": step_s,
            "data_time_s": max(data_s) / meter.num_steps,
            "memory_mb": max(memories),
            "epoch": state.samples / t.splits.train.num_samples if t.splits.train.num_samples else None,
            **told,
        }
        t.records.write("train", **record)
        t.progress.show(state.step, record)
        t.loss.reset()
        meter.reset()
    return any(stops)


def evaluate_now(t: Training) -> bool:
    """Evaluate the held-out samples, record it, keep the best. False where a stop was asked for meanwhile."""
    average = t.update.average if t.run.evaluate.weights != "raw" else NoAverage()
    with average.swapped():
        sums = evaluate(t.ctx, t.strategy, t.task, t.splits, t.run.evaluate.batch, StopPoll(t.ctx))
    if sums is None:
        return False
    found = t.task.metrics(sums, t.splits.facts)
    t.state.evaluated(found, t.task.best_metric, t.task.best_mode)
    t.records.write("eval", step=t.state.step, samples=t.state.samples, time_s=t.state.time_s, metrics=found)
    if t.ctx.is_main:
        t.ctx.say(f"step {t.state.step} held out: " + ", ".join(f"{k} {v:.6g}" for k, v in found.items()))
    return True


def finish(t: Training, run_dir: Path, out: Path, started: float) -> None:
    """Weights for others, then the result: train.json is written last, and is what says that the run is done."""
    export.write_model(t.ctx, t.run, t.strategy, t.update.average, run_dir / "model", t.state.step)
    nodes = gather_objects(t.ctx, (t.ctx.node_rank, t.ctx.host))
    if not t.ctx.is_main:
        return
    with t.ctx.reporter.phase("result"):  # the others wait at the end
        content, _ = metrics.strict(result.summary(t, nodes, started))
        text = json.dumps(content, indent=1) + "\n"
        # Snakemake deletes a rule's outputs before it runs the rule again; launch restores train.json from this copy.
        manifest.replace_synced(run_dir / "finished.json", text)
        manifest.replace_synced(out, text)
