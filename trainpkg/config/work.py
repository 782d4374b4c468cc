"""Sections that say what is computed: model, length and precision; a program of the user's own. Data: `sources`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Tag

from trainpkg.config.keys import Section, execution, identity, later
from trainpkg.config.names import Kwargs, OwnName, by_name


class ConvModel(Section):
    """A small residual-free conv net for small images."""

    name: Literal["conv"]
    width: int = identity(32, "Channels of the first stage; the second has twice as many.", ge=1)
    dropout: float = identity(0.1, "Dropout before the classifier.", ge=0, lt=1)
    side: int = later(8, "Side of the images in pixels.", ge=4)
    channels: int = later(1, "Channels of the images.", ge=1)
    classes: int = later(10, "Classes.", ge=1)


class ViTModel(Section):
    """A small vision transformer."""

    name: Literal["vit"]
    dim: int = identity(64, "Width of the residual stream.", ge=1)
    depth: int = identity(4, "Number of blocks.", ge=1)
    heads: int = identity(4, "Attention heads; must divide dim.", ge=1)
    patch: int = identity(2, "Side of a patch in pixels; must divide the image's side.", ge=1)
    dropout: float = identity(0.0, "Dropout in attention and MLP.", ge=0, lt=1)
    side: int = later(8, "Side of the images in pixels.", ge=1)
    channels: int = later(1, "Channels of the images.", ge=1)
    classes: int = later(10, "Classes.", ge=1)


class GPTModel(Section):
    """A small GPT, over bytes unless `vocabulary` says more."""

    name: Literal["gpt"]
    dim: int = identity(128, "Width of the residual stream.", ge=1)
    depth: int = identity(4, "Number of blocks.", ge=1)
    heads: int = identity(4, "Attention heads; must divide dim.", ge=1)
    context: int = identity(128, "Tokens that a prediction can see.", ge=1)
    dropout: float = identity(0.0, "Dropout in attention and MLP.", ge=0, lt=1)
    vocabulary: int = later(256, "Number of tokens; 256: bytes.", ge=2)


class OwnModel(Section):
    """A network of the user's own: an nn.Module that a class or function makes."""

    name: OwnName
    kwargs: Kwargs = later({}, "Arguments of your own class or function.")


Model = Annotated[
    Annotated[ConvModel, Tag("conv")]
    | Annotated[ViTModel, Tag("vit")]
    | Annotated[GPTModel, Tag("gpt")]
    | Annotated[OwnModel, Tag("own")],
    by_name("conv, vit, gpt"),
]


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
