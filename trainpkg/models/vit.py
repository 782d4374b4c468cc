"""A small vision transformer for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpkg.config import ViTModel
from trainpkg.models.transformer import Block, initialise


class ViT(nn.Module):
    """Images [N, channels, side, side] to logits [N, classes]; a patch is a token, the classifier sees their mean."""

    def __init__(self, config: ViTModel) -> None:
        super().__init__()
        self.patch = config.patch
        num_patches = (config.side // config.patch) ** 2
        self.embed = nn.Linear(config.channels * config.patch**2, config.dim)
        self.position = nn.Parameter(torch.empty(num_patches, config.dim))
        self.blocks = nn.ModuleList(
            [Block(config.dim, config.heads, config.dropout, causal=False) for _ in range(config.depth)]
        )
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.classes)

    def initialise(self, name: str, tensor: Tensor) -> None:
        """Fill a whole weight, by its name, from torch's generator."""
        if name == "embed.weight":
            nn.init.normal_(tensor, std=tensor.shape[1] ** -0.5)
        else:
            initialise(name, tensor, len(self.blocks))

    def forward(self, images: Tensor) -> Tensor:
        n, channels, side, _ = images.shape
        p = self.patch
        tiles = images.view(n, channels, side // p, p, side // p, p).permute(0, 2, 4, 1, 3, 5)
        x = self.embed(tiles.reshape(n, -1, channels * p * p)) + self.position
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits
