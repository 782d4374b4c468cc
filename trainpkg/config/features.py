"""Which features of training cannot go together: each refused with its reason, none ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainpkg.config.names import is_own
from trainpkg.config.work import GPTModel

if TYPE_CHECKING:
    from trainpkg.config.run import Run

SHARDED = ("fsdp", "hsdp")


def refuse_pipeline(name: object) -> object:
    """Pipeline parallel under its usual names."""
    if isinstance(name, str) and name.lower() in ("pipeline", "pipeline_parallel", "pp"):
        raise ValueError(
            f"strategy = {name!r}: pipeline parallel is not offered; fsdp or hsdp shard what does not fit on one device"
        )
    return name


def disagreements(run: Run) -> list[str]:
    """Sentences on features that contradict each other, for runs of the built-in trainer."""
    return [*_strategy(run), *_sequence(run), *_optim(run), *_evaluate(run), *_profile(run)]


def _strategy(run: Run) -> Iterator[str]:
    ranks = run.num_ranks
    strategy = run.strategy or ("ddp" if (ranks or 2) > 1 else "single")
    if strategy == "single" and (ranks or 1) > 1:
        yield f"strategy = 'single' contradicts {ranks} ranks (launch.nodes x launch.gpus_per_node); use ddp"
    if run.ddp.find_unused_parameters and strategy != "ddp":
        yield (
            f"ddp.find_unused_parameters = True with strategy = {strategy!r}: only DistributedDataParallel searches; "
            "the others take a parameter that a step does not use without being told"
        )
    for key in ("reshard_after_forward", "reduce_every_microbatch"):
        if not getattr(run.fsdp, key) and strategy not in SHARDED:
            yield f"fsdp.{key} = False has no effect with strategy = {strategy!r}: nothing is sharded; use fsdp or hsdp"
    if run.fsdp.cpu_offload and strategy not in SHARDED:
        yield f"fsdp.cpu_offload = True with strategy = {strategy!r}: only shards are kept elsewhere; use fsdp or hsdp"
    elif run.fsdp.cpu_offload and run.launch.device == "cpu":
        yield (
            "fsdp.cpu_offload = True with launch.device = 'cpu': there is no device whose memory it would spare, and "
            "torch refuses it (Cannot access accelerator device when none is available)"
        )
    share = run.train.global_batch * run.sequence_parallel // (ranks or 1)
    if share < run.train.accumulation:
        yield (
            f"train.global_batch = {run.train.global_batch} leaves a rank of {ranks or 1} only {share} sample(s), too "
            f"few for train.accumulation = {run.train.accumulation} micro-batches"
        )


def _sequence(run: Run) -> Iterator[str]:
    size = run.sequence_parallel
    if size == 1:
        return
    given = f"sequence_parallel = {size}"
    if not isinstance(run.model, GPTModel):
        yield f"{given} with model.name = {run.model.name!r}: only gpt has a sequence to share"
    elif is_own(run.task) or is_own(run.data.name):
        yield f"{given} with a task or data of your own: only the built-in ones cut sequences into pieces"
    else:
        given_context = getattr(run.data, "context", None)
        length = ("model.context", run.model.context) if given_context is None else ("data.context", given_context)
        for key, value in (("model.heads", run.model.heads), length):
            if value % size:
                yield f"{given} does not divide {key} = {value}: each rank gets a part of both"
    if run.strategy == "single":
        yield f"{given} needs several ranks, strategy = 'single' is one process; use ddp or fsdp"
    if run.num_ranks is not None and run.num_ranks % size:
        yield f"{given} does not divide {run.num_ranks} ranks"
    if run.launch.gpus_per_node is not None and run.launch.gpus_per_node % size:
        yield f"{given} does not divide launch.gpus_per_node = {run.launch.gpus_per_node}: it stays inside a node"


def _optim(run: Run) -> Iterator[str]:
    optim, train = run.optim, run.train
    if optim.lr_scaling != "none" and optim.base_batch is None:
        yield f"optim.lr_scaling = {optim.lr_scaling!r} needs optim.base_batch: the global batch that optim.lr is for"
    if optim.lr_scaling == "none" and optim.base_batch is not None:
        yield f"optim.base_batch = {optim.base_batch} has no effect with optim.lr_scaling = 'none'"
    if optim.name == "muon" and run.model.name == "conv":
        yield "optim.name = 'muon' with model.name = 'conv': its blocks have no matrices; use adamw or sgd"
    if train.precision == "fp16" and train.nonfinite == "ignore":
        yield (
            "train.nonfinite = 'ignore' with train.precision = 'fp16': the gradient scaler works by leaving out steps "
            "that overflow; use skip or stop (which looks at the loss then)"
        )


def _evaluate(run: Run) -> Iterator[str]:
    if run.evaluate.weights == "ema" and run.ema is None:
        yield "evaluate.weights = 'ema' needs a section ema: this run keeps no averaged weights; take auto or raw"
    if run.evaluate.checkpoint == "best" and not run.checkpoint.keep_best:
        yield (
            "evaluate.checkpoint = 'best' needs checkpoint.keep_best of at least 1: else the best may be gone by the "
            "end of the run"
        )


def _profile(run: Run) -> Iterator[str]:
    profile = run.profile
    if profile is None:
        return
    if profile.last_step < profile.first_step:
        yield f"profile.last_step = {profile.last_step} is before profile.first_step = {profile.first_step}"
    if profile.first_step > run.train.max_steps:
        yield f"profile.first_step = {profile.first_step} is after train.max_steps = {run.train.max_steps}"
    ranks = run.num_ranks
    if ranks is not None and (beyond := [rank for rank in profile.ranks if not 0 <= rank < ranks]):
        yield f"profile.ranks: {beyond} of {ranks} ranks do not exist"
