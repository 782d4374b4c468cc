"""The built-in networks. They know nothing of ranks, devices or files."""

from __future__ import annotations

from torch import nn

from trainpkg.config import ConvModel, GPTModel, Model, ViTModel
from trainpkg.models.conv import Conv
from trainpkg.models.gpt import GPT
from trainpkg.models.vit import ViT


def build(config: Model) -> nn.Module:
    """The network that `model.name` asks for, initialised from torch's global generator."""
    match config:
        case ConvModel():
            return Conv(config)
        case ViTModel():
            return ViT(config)
        case GPTModel():
            return GPT(config)
