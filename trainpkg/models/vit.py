"""A small vision transformer for 8 x 8 images in one channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpkg.config import ViTModel
from trainpkg.models.conv import NUM_CLASSES
from trainpkg.models.transformer import Block, initialise

SIDE = 8


class ViT(nn.Module):
    """Images [N, 1, 8, 8] to logits [N, 10]; patches as tokens, mean over tokens before the classifier."""

    def __init__(self, config: ViTModel) -> None:
        super().__init__()
        self.patch = config.patch
        num_patches = (SIDE // config.patch) ** 2
        self.embed = nn.Linear(config.patch**2, config.dim)
        self.position = nn.Parameter(torch.empty(num_patches, config.dim))
        self.blocks = nn.ModuleList(
            [Block(config.dim, config.heads, config.dropout, causal=False) for _ in range(config.depth)]
        )
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, NUM_CLASSES)

    def initialise(self, name: str, tensor: Tensor) -> None:
        """Fill a whole weight, by its name, from torch's generator."""
        if name == "embed.weight":
            nn.init.normal_(tensor, std=self.patch**-1)
        else:
            initialise(name, tensor, len(self.blocks))

    def forward(self, images: Tensor) -> Tensor:
        n, p = images.shape[0], self.patch
        tiles = images.view(n, SIDE // p, p, SIDE // p, p).transpose(2, 3).reshape(n, -1, p * p)
        x = self.embed(tiles) + self.position
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits
