"""What is done to each of a model's blocks before it is spread: recomputed activations, compilation."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainpkg.config import Train


def prepare(train: Train, module: nn.Module) -> None:
    """Change the forward of each block in `module.blocks`, of the whole module where it has none.

    The forward and not the module, so that parameters keep their names, and FSDP's hooks, which gather weights, stay
    outside: what is computed again in backward finds them gathered.
    """
    for block in getattr(module, "blocks", None) or [module]:
        if train.compile:
            block.forward = torch.compile(block.forward)
        if train.activation_checkpointing:
            # Generators are put back for the second pass, so that dropout drops the same.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
