"""The built-in networks. They know nothing of ranks, devices or files."""

from __future__ import annotations

import torch
from torch import nn

from trainpkg.config import Model
from trainpkg.models.conv import Conv
from trainpkg.models.gpt import GPT
from trainpkg.models.vit import ViT

KINDS: dict[str, type[nn.Module]] = {"conv": Conv, "vit": ViT, "gpt": GPT}


def build(config: Model) -> nn.Module:
    """The network that `model.name` asks for, on the meta device: shapes without memory.

    A class says in a method `initialise(name, tensor)` how its weights are filled later: one whole parameter or buffer
    at a time, on the host, from torch's global generator. A class without it is built for real, from that generator.
    Weights of a file go in with `load_state_dict(weights, assign=True)`.
    """
    kind = KINDS[config.name]
    with torch.device("meta" if hasattr(kind, "initialise") else "cpu"):
        return kind(config)
