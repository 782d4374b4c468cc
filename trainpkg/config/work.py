"""Sections that say what is computed: model, data, length and precision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainpkg.config.keys import Section, execution, identity


class ConvModel(Section):
    """A small residual-free conv net for small images."""

    name: Literal["conv"]
    width: int = identity(32, "Channels of the first stage; the second has twice as many.", ge=1)
    dropout: float = identity(0.1, "Dropout before the classifier.", ge=0, lt=1)


class ViTModel(Section):
    """A small vision transformer."""

    name: Literal["vit"]
    dim: int = identity(64, "Width of the residual stream.", ge=1)
    depth: int = identity(4, "Number of blocks.", ge=1)
    heads: int = identity(4, "Attention heads; must divide dim.", ge=1)
    patch: int = identity(2, "Side of a patch in pixels; must divide the image's side.", ge=1)
    dropout: float = identity(0.0, "Dropout in attention and MLP.", ge=0, lt=1)


class GPTModel(Section):
    """A small byte-level GPT."""

    name: Literal["gpt"]
    dim: int = identity(128, "Width of the residual stream.", ge=1)
    depth: int = identity(4, "Number of blocks.", ge=1)
    heads: int = identity(4, "Attention heads; must divide dim.", ge=1)
    context: int = identity(128, "Tokens that a prediction can see.", ge=1)
    dropout: float = identity(0.0, "Dropout in attention and MLP.", ge=0, lt=1)


class Loading(Section):
    """What all data sets have."""

    workers: int = execution(0, "Processes per rank that prepare batches ahead; 0: the rank itself.", ge=0)


class DigitsData(Loading):
    """The 1,797 handwritten digits (8 x 8 pixels) that ship with scikit-learn."""

    name: Literal["digits"]
    shift: int = identity(0, "Pixels that training images are moved by at most, anew in each epoch.", ge=0, le=3)
    test_fraction: float = identity(0.2, "Share of the images held out for evaluation.", gt=0, lt=1)


class PythonTextData(Loading):
    """The source text of Python's standard library on this machine, as bytes."""

    name: Literal["python_text"]
    max_bytes: int = identity(4_000_000, "Bytes used, training and validation together.", ge=10_000)
    validation_fraction: float = identity(0.05, "Share of the files held out for validation.", gt=0, lt=1)


Model = Annotated[ConvModel | ViTModel | GPTModel, Field(discriminator="name")]
Data = Annotated[DigitsData | PythonTextData, Field(discriminator="name")]


class Entry(Section):
    """A training program of the user's own, in place of task, model, data, optim and train."""

    script: str | None = identity(None, "Python file that each rank runs: python -u SCRIPT ARGS.")
    module: str | None = identity(None, "Module instead of a file: python -u -m MODULE ARGS.")
    args: tuple[str, ...] = identity(
        (), "Arguments; {rank} {local_rank} and what launch.command knows, but {python} and {entry}, are filled in."
    )
    outputs: tuple[str, ...] = execution(
        (), "Files that it must leave behind, else the run has failed; {run} and {run_dir} are filled in."
    )
    metrics: str | None = execution(
        None,
        "File of JSON lines that it writes, one object with a whole step each: what is new in it comes into the run's "
        "metrics.jsonl every second. {run} and {run_dir} are filled in.",
    )


class Train(Section):
    """How long, how much at once, in which precision."""

    max_steps: int = identity(..., "Optimiser steps of the whole run.", ge=1)
    global_batch: int = identity(..., "Samples per optimiser step over all ranks.", ge=1)
    accumulation: int = execution(1, "Micro-batches per step and rank; divides memory, not the result.", ge=1)
    precision: Literal["fp32", "bf16", "fp16"] = identity(
        "fp32", "bf16, fp16: forward and backward in it, weights in fp32; fp16 with a gradient scaler."
    )
    nonfinite: Literal["stop", "skip", "ignore"] = identity(
        "stop", "What a step whose gradients hold NaN or infinity does: end the run, leave the weights alone, go on."
    )
    activation_checkpointing: bool = execution(False, "Compute each block's activations again in backward.")
    compile: bool = execution(False, "torch.compile, block by block.")
    init_from: str | None = identity(None, "Path of a checkpoint or a model folder whose weights the run begins with.")
