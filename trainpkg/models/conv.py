"""A small conv net for small images. GroupNorm: a sample's output does not depend on its batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainpkg.config import ConvModel


class Stage(nn.Module):
    """Two 3 x 3 convolutions, each normalised, then half the side."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        groups = math.gcd(num_out, 8)
        self.layers = nn.Sequential(
            nn.Conv2d(num_in, num_out, 3, padding=1, bias=False),
            nn.GroupNorm(groups, num_out),
            nn.ReLU(),
            nn.Conv2d(num_out, num_out, 3, padding=1, bias=False),
            nn.GroupNorm(groups, num_out),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers(images)
        return out


class Conv(nn.Module):
    """Images [N, channels, side, side] to logits [N, classes]."""

    def __init__(self, config: ConvModel) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Stage(config.channels, config.width), Stage(config.width, 2 * config.width)])
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(2 * config.width * (config.side // 4) ** 2, config.classes)

    def initialise(self, name: str, tensor: Tensor) -> None:
        """Fill a whole weight, by its name, from torch's generator: uniform within 1 / sqrt(inputs), as torch does."""
        if tensor.ndim > 1:
            nn.init.kaiming_uniform_(tensor, a=math.sqrt(5))
        else:
            nn.init.constant_(tensor, 1.0 if name.endswith("weight") else 0.0)

    def forward(self, images: Tensor) -> Tensor:
        for block in self.blocks:
            images = block(images)
        logits: Tensor = self.head(self.dropout(torch.flatten(images, 1)))
        return logits
