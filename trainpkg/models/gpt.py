"""A small decoder-only transformer over bytes or other tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpkg.config import GPTModel
from trainpkg.models.transformer import Block, initialise


class GPT(nn.Module):
    """Tokens [N, T] (int64, T <= context) to logits of the next one [N, T, vocabulary].

    `piece`: the tokens are this one of several equally long pieces of each text, counted from 0.
    """

    piece = 0

    def __init__(self, config: GPTModel) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.dim)
        self.position = nn.Embedding(config.context, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            [Block(config.dim, config.heads, config.dropout, causal=True) for _ in range(config.depth)]
        )
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)

    def initialise(self, name: str, tensor: Tensor) -> None:
        """Fill a whole weight, by its name, from torch's generator."""
        initialise(name, tensor, len(self.blocks))

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        positions = torch.arange(self.piece * length, (self.piece + 1) * length, device=text.device)
        x = self.dropout(self.embed(text) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
