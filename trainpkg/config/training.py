"""Sections that say how the trainer works: sharding, saving, records, evaluation, looking inside."""

from __future__ import annotations

from typing import Literal

from trainpkg.config.keys import Section, execution


class Ddp(Section):
    """Keys of strategy ddp (DistributedDataParallel)."""

    find_unused_parameters: bool = execution(
        False, "Search the graph for parameters that a step does not use; without it such a step is an error."
    )


class Fsdp(Section):
    """Keys of strategies fsdp and hsdp (FSDP2 `fully_shard`, per block)."""

    reshard_after_forward: bool = execution(True, "Free gathered weights between forward and backward.")
    reduce_every_microbatch: bool = execution(
        True, "Reduce gradients in each micro-batch; false: once per step, keeping whole gradients in memory till then."
    )
    cpu_offload: bool = execution(False, "Keep shards and optimizer in the host's memory between uses; GPUs only.")


class Checkpoint(Section):
    """When checkpoints are saved and which are kept."""

    every_steps: int = execution(100, "Steps between checkpoints; the last step always saves.", ge=1)
    every_minutes: float | None = execution(None, "And this long after the last one, whatever its step.", gt=0)
    keep_last: int = execution(2, "Newest checkpoints kept.", ge=1)
    keep_best: int = execution(0, "Best checkpoints kept as well, by the metric that the task calls best.", ge=0)
    keep_every_steps: int | None = execution(None, "Checkpoints of these steps are kept for ever.", ge=1)
    asynchronous: bool = execution(
        False, "Write while training goes on, from a copy in memory (needs that of model and optimizer once more)."
    )
    timeout_s: float = execution(3600.0, "For ranks that wait for the slowest one to write its part.", gt=0)


class Logging(Section):
    """What is written to metrics.jsonl, and how often."""

    every_steps: int = execution(10, "Steps between records.", ge=1)
    eval_every_steps: int = execution(100, "Steps between evaluations during training; the last step always.", ge=1)
    trackers: tuple[Literal["tensorboard", "mlflow", "wandb", "trackio"], ...] = execution(
        (), "Who is told each record as well; each is an extra of the package: pip install 'trainpkg[NAME]'."
    )
    layers: bool = execution(False, "Gradient norm and update ratio of each block in every record.")


class Evaluate(Section):
    """The rule `evaluate`."""

    batch: int = execution(256, "Samples per forward pass and rank.", ge=1)
    nodes: int | None = execution(None, "Nodes; left out: those of the run.", ge=1)
    checkpoint: str = execution("last", "last, best, a step's number, or the path of a checkpoint.", min_length=1)
    weights: Literal["auto", "raw", "ema"] = execution("auto", "auto: the averaged weights where the run has them.")


class Profile(Section):
    """A look at some steps by torch's profiler, as a Chrome trace per rank."""

    first_step: int = execution(..., "First step that is recorded, counted from 1.", ge=1)
    last_step: int = execution(..., "Last one.", ge=1)
    ranks: tuple[int, ...] = execution((0,), "Ranks that record.", min_length=1)
    memory: bool = execution(False, "Also who allocated what: on GPUs a snapshot for pytorch.org/memory_viz.")
