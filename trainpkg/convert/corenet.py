"""A recipe from a config of Apple's CoreNet: what both have, each value with the line that it comes from.

Where the file is silent, what is computed follows CoreNet's own defaults (no clipping, beta2 of 0.98, ...), not ours;
how it is executed follows ours. Whatever has no counterpart is kept, with the reason, in the recipe's comments.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainpkg.convert import names
from trainpkg.convert.leaves import Leaf
from trainpkg.errors import UserError

T = TypeVar("T", int, float, bool, str)
PRECISION = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# what CoreNet's schedules call their highest and lowest rate, with its defaults; and how they are called here
SCHEDULES: Mapping[str, tuple[str, tuple[str, float], tuple[str, float] | None]] = {
    "cosine": ("cosine", ("max_lr", 0.1), ("min_lr", 1e-5)),
    "polynomial": ("linear", ("start_lr", 0.1), ("end_lr", 0.0)),
    "fixed": ("constant", ("lr", math.nan), None),
}


@dataclass(frozen=True)
class Size:
    """What a config of CoreNet does not say: nodes, GPUs of each, samples of an epoch."""

    nodes: int
    gpus_per_node: int
    samples: int | None

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass
class Recipe:
    """The keys found, as (key, value, where from); `remarks` are sentences on what is not quite the same."""

    keys: list[tuple[str, Any, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    left: list[Leaf] = field(default_factory=list)

    def say(self, key: str, value: Any, origin: str) -> None:
        self.keys.append((key, value, origin))


class Source:
    """CoreNet's options by key: as the file gives them, else as CoreNet has them. Remembers which were asked for."""

    def __init__(self, leaves: Mapping[str, Leaf]) -> None:
        self.leaves = leaves
        self.used: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self.leaves and self.leaves[key].value is not None

    def get(self, key: str, default: T) -> T:
        """The value as `default`'s type. Raises UserError where it is none: CoreNet would not look at it either."""
        self.used.add(key)
        if not self.has(key):
            return default
        value, kind = self.leaves[key].value, type(default)
        if kind is bool and not isinstance(value, bool):
            raise UserError(f"{self.leaves[key]}: true or false is expected")
        try:
            return kind(value)  # 1e-5 is text to YAML
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.leaves[key]}: a value of type {kind.__name__} is expected") from error

    def origin(self, *keys: str) -> str:
        """Where values come from."""
        told = [f"line {self.leaves[key].line}: {key}" if self.has(key) else f"{key} (default)" for key in keys]
        return ", ".join(told)


def convert(leaves: Mapping[str, Leaf], size: Size) -> Recipe:
    """The recipe.

    Raises:
        UserError: a value that has the wrong type, with its line.
    """
    source, recipe = Source(leaves), Recipe()
    _precision(source, recipe, is_fsdp=_strategy(source, recipe))
    steps_per_epoch = _length(source, recipe, size)
    _optim(source, recipe)
    _schedule(source, recipe)
    if source.get("ema.enable", False):
        recipe.say("ema.decay", _short(1 - source.get("ema.momentum", 1e-4)), source.origin("ema.momentum"))
    _saving(source, recipe, steps_per_epoch)
    _telling(source, recipe, steps_per_epoch)
    recipe.say("launch.nodes", size.nodes, "--nodes")
    recipe.say("launch.gpus_per_node", size.gpus_per_node, "--gpus-per-node")
    recipe.left = [leaf for key, leaf in leaves.items() if key not in source.used]
    return recipe


def _strategy(source: Source, recipe: Recipe) -> bool:
    """Whether it is CoreNet's FSDP, sharded or not."""
    recipe.say("seed", source.get("common.seed", 0), source.origin("common.seed"))
    key = "train_eval_pipeline.name"
    pipeline = source.get(key, "default")
    is_fsdp = pipeline == "fsdp_train_eval_pipeline"
    sharding = source.get("fsdp.sharding_strategy", "full_shard") if is_fsdp else ""
    sharded = is_fsdp and sharding != "no_shard"
    recipe.say("strategy", "fsdp" if sharded else "ddp", source.origin(key))
    if pipeline not in names.PIPELINES:
        recipe.remarks.append(f"{source.leaves[key]} is a pipeline of your own: strategy is that of `default`")
    if sharded and sharding == "grad_op_shard":
        recipe.say("fsdp.reshard_after_forward", False, source.origin("fsdp.sharding_strategy"))
    if sharded and source.get("fsdp.cpu_offload", False):
        recipe.say("fsdp.cpu_offload", True, source.origin("fsdp.cpu_offload"))
    if not is_fsdp and source.get("ddp.find_unused_params", False):
        recipe.say("ddp.find_unused_parameters", True, source.origin("ddp.find_unused_params"))
    return is_fsdp


def _precision(source: Source, recipe: Recipe, *, is_fsdp: bool) -> None:
    if is_fsdp:
        key, given = "fsdp.parameter_datatype", source.get("fsdp.parameter_datatype", "bfloat16")
    else:
        key, given = "common.mixed_precision", "float32"
        if source.get(key, False):
            key, given = "common.mixed_precision_dtype", source.get("common.mixed_precision_dtype", "float16")
    if given not in PRECISION:
        raise UserError(f"{source.leaves[key]}: CoreNet knows {', '.join(PRECISION)}")
    recipe.say("train.precision", PRECISION[given], source.origin(key))
    key = "fsdp.gradient_reduction_datatype"
    if is_fsdp and source.get(key, "bfloat16") != "float32":
        recipe.remarks.append(f"{source.origin(key)}: gradients are summed in fp32 here, whatever train.precision is")


def _length(source: Source, recipe: Recipe, size: Size) -> int | None:
    """Steps per epoch, where they are known."""
    per_gpu, accumulation = source.get("dataset.train_batch_size0", 128), source.get("common.accum_freq", 1)
    origin = source.origin("dataset.train_batch_size0", "common.accum_freq")
    recipe.say("train.global_batch", per_gpu * accumulation * size.ranks, f"{origin}, x {size.ranks} GPUs")
    if accumulation > 1:
        recipe.say("train.accumulation", accumulation, source.origin("common.accum_freq"))
        recipe.remarks.append(
            f"common.accum_freq = {accumulation}: CoreNet adds the losses of micro-batches up, here they are averaged: "
            "gradients are that much smaller (sgd's optim.lr and optim.clip_norm want to know)"
        )
    key = "common.accum_after_epoch"
    if source.get(key, 0) > 0:
        recipe.remarks.append(f"{source.origin(key)}: the batch is the same from the first step on, accumulated or not")
    if source.has("sampler.name") and "variable" in str(source.leaves["sampler.name"].value):
        recipe.remarks.append(f"{source.leaves['sampler.name']}: CoreNet's batch follows images' size, ours stays")
    per_epoch = None
    repeats = 1 if source.get("sampler.truncated_repeat_aug_sampler", False) else source.get("sampler.num_repeats", 1)
    if source.get("dataset.percentage_of_samples", 100.0) != 100:
        recipe.remarks.append(f"{source.leaves['dataset.percentage_of_samples']}: --samples is to count those alone")
    if size.samples is not None:
        batches = math.ceil(repeats * math.ceil(size.samples / size.ranks) / per_gpu)
        per_epoch = max(1, batches // accumulation)
    if source.get("scheduler.is_iteration_based", False):
        key = "scheduler.max_iterations"
        recipe.say("train.max_steps", source.get(key, 300_000), source.origin(key))
        return per_epoch
    where, epochs = source.origin("scheduler.max_epochs"), source.get("scheduler.max_epochs", 300)
    if per_epoch is None:
        recipe.remarks.append(
            f"{where}: train.max_steps is {epochs} epochs of your data; say their samples: --samples N"
        )
    else:
        recipe.say("train.max_steps", epochs * per_epoch, f"{where}, x {per_epoch} steps")
    return per_epoch


def _optim(source: Source, recipe: Recipe) -> None:
    name = source.get("optim.name", "sgd").lower()
    decay = source.get("optim.weight_decay", 4e-5)
    recipe.say("optim.name", "sgd" if name == "sgd" else "adamw", source.origin("optim.name"))
    if name in ("adam", "adamw"):
        for beta, default in (("beta1", 0.9), ("beta2", 0.98)):
            key = f"optim.{name}.{beta}"
            recipe.say(f"optim.{beta}", source.get(key, default), source.origin(key))
        if source.get(f"optim.{name}.eps", 1e-8) != 1e-8:
            recipe.remarks.append(f"{source.leaves[f'optim.{name}.eps']}: it is 1e-8 here")
    elif name == "sgd":
        recipe.say("optim.momentum", source.get("optim.sgd.momentum", 0.9), source.origin("optim.sgd.momentum"))
    if name == "adam" and decay:
        recipe.remarks.append(f"{source.origin('optim.weight_decay')}: adam adds it to gradients, adamw does not")
    if name not in ("adam", "adamw", "sgd"):
        recipe.remarks.append(f"{source.leaves['optim.name']}: not here; adamw stands in its place")
    recipe.say("optim.weight_decay", decay, source.origin("optim.weight_decay"))
    spared = source.get("optim.no_decay_bn_filter_bias", False)
    recipe.say("optim.decay", "matrices" if spared else "all", source.origin("optim.no_decay_bn_filter_bias"))
    clip = source.get("common.grad_clip", 0.0) if source.has("common.grad_clip") else None
    source.used.add("common.grad_clip")
    recipe.say("optim.clip_norm", clip or None, source.origin("common.grad_clip"))


def _schedule(source: Source, recipe: Recipe) -> None:
    name = source.get("scheduler.name", "cosine").lower()
    known = name in SCHEDULES
    ours, (high, high_default), low = SCHEDULES[name] if known else SCHEDULES["cosine"]
    recipe.say("optim.schedule", ours, source.origin("scheduler.name"))
    if not known:
        recipe.remarks.append(f"{source.leaves['scheduler.name']}: not here; cosine stands in its place, say optim.lr")
    else:
        key = f"scheduler.{name}.{high}"
        peak = source.get(key, high_default)
        if not peak > 0:
            raise UserError(f"{source.origin(key)}: a rate above 0 is needed, and CoreNet has no default for it")
        recipe.say("optim.lr", peak, source.origin(key))
        if low is not None:
            key = f"scheduler.{name}.{low[0]}"
            recipe.say("optim.min_lr_ratio", min(1.0, _short(source.get(key, low[1]) / peak)), source.origin(key))
            if source.get(key, low[1]) > peak:
                recipe.remarks.append(f"{source.origin(key)}: CoreNet's rate rises to it; here it stays at optim.lr")
    key = "scheduler.polynomial.power"
    if name == "polynomial" and source.get(key, 0.9) != 1:
        recipe.remarks.append(f"{source.origin(key)} bends the rate; here it falls in a straight line, as with power 1")
    if name != "fixed" and not source.get("scheduler.is_iteration_based", False):
        recipe.remarks.append("CoreNet changes the rate once per epoch in this run, here it changes at each step")
    key = "scheduler.warmup_iterations"
    warmup = max(0, source.get(key, 0))
    recipe.say("optim.warmup_steps", warmup, source.origin(key))
    if warmup and not source.has("scheduler.adjust_period_for_epochs"):
        recipe.remarks.append(f"{source.origin(key)}: CoreNet's rate falls from step 0 on, ours after the warm-up")


def _saving(source: Source, recipe: Recipe, steps_per_epoch: int | None) -> None:
    if source.get("model.activation_checkpointing", False):
        recipe.say("train.activation_checkpointing", True, source.origin("model.activation_checkpointing"))
    key = "common.save_interval_freq"
    every, origin = source.get(key, 0), source.origin(key)
    all_stay = source.get("common.save_all_checkpoints", False)
    if not every and steps_per_epoch:
        every, origin = steps_per_epoch, f"{origin}: once per epoch"
    if every:
        recipe.say("checkpoint.every_steps", every, origin)
    elif all_stay:
        recipe.remarks.append(f"{source.origin('common.save_all_checkpoints')}: say checkpoint.keep_every_steps")
    if every and (all_stay or source.get(key, 0)):
        recipe.say("checkpoint.keep_every_steps", every, source.origin("common.save_all_checkpoints", key))
    key = "common.k_best_checkpoints"
    if source.has(key) and source.get(key, 5) > 0:
        recipe.say("checkpoint.keep_best", source.get(key, 5), source.origin(key))


def _telling(source: Source, recipe: Recipe, steps_per_epoch: int | None) -> None:
    key = "common.log_freq"
    if source.has(key):
        recipe.say("logging.every_steps", source.get(key, 100), source.origin(key))
    key = "common.eval_every_k_iterations"
    every = source.get(key, 0) or steps_per_epoch
    if source.get("dataset.disable_val", False):
        steps = next((value for name, value, _ in recipe.keys if name == "train.max_steps"), None)
        source.used.discard(key)
        every, key = steps, "dataset.disable_val"
        if steps is None:
            recipe.remarks.append(f"{source.origin(key)}: logging.eval_every_steps is to be train.max_steps")
    if every:
        recipe.say("logging.eval_every_steps", every, source.origin(key))
    if source.get("common.tensorboard_logging", False):
        recipe.say("logging.trackers", ["tensorboard"], source.origin("common.tensorboard_logging"))
    key = "dataset.eval_batch_size0" if source.has("dataset.eval_batch_size0") else "dataset.val_batch_size0"
    if source.has(key):
        recipe.say("evaluate.batch", source.get(key, 1), source.origin(key))


def lines(recipe: Recipe, name: str) -> Iterator[str]:
    """The recipe as YAML: sections in order, each value with its origin; then the comments."""
    yield f"# From {name} (CoreNet) by `trainpkg convert corenet`; docs/corenet.md is about it."
    yield "# Yours to write, before anything can run: task, model, data (docs/own-model.md)."
    tree: dict[str, list[tuple[str, Any, str]]] = {}
    for key, value, origin in recipe.keys:
        section, _, leaf = key.rpartition(".")
        tree.setdefault(section, []).append((leaf, value, origin))
    for section, entries in tree.items():
        if section:
            yield f"{section}:"
        for leaf, value, origin in entries:
            shown = f"{'  ' if section else ''}{leaf}: {_yaml(value)}"
            yield f"{shown:<34}  # {origin}"
    yield from (f"# Note: {remark}" for remark in recipe.remarks)
    if recipe.left:
        yield "# No key of this recipe, line by line:"
    for left in sorted(recipe.left, key=lambda leaf: leaf.line):
        yield f"#   {left}: {names.about(left.key)}"


def _yaml(value: Any) -> str:
    """As YAML has it: to its readers 4e-05 is text, 4.0e-05 a number."""
    return value if isinstance(value, str) else re.sub(r"^(\d+)e", r"\1.0e", json.dumps(value))


def _short(value: float) -> float:
    """Without the last digits that a division leaves behind."""
    return float(f"{value:.12g}")
