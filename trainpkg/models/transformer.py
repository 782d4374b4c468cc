"""The block that the ViT and the GPT share: pre-norm attention and MLP on a residual stream."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention over [N, T, dim]."""

    def __init__(self, dim: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mix: Callable[..., Tensor] = F.scaled_dot_product_attention

    def forward(self, x: Tensor) -> Tensor:
        n, t, dim = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = self.mix(q, k, v, is_causal=self.causal, dropout_p=dropout)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(n, t, dim))
        return out


class Block(nn.Module):
    """[N, T, dim] to the same."""

    def __init__(self, dim: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, dropout, causal)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


def initialise(name: str, tensor: Tensor, depth: int) -> None:
    """Matrices normal, 0.02 wide, those that write to the residual stream smaller by sqrt(2 x depth), as in GPT-2."""
    if tensor.ndim > 1:
        writes = name.endswith(("attention.out.weight", "mlp.2.weight"))
        nn.init.normal_(tensor, std=0.02 / (2 * depth) ** 0.5 if writes else 0.02)
    else:
        nn.init.constant_(tensor, 1.0 if name.endswith("weight") else 0.0)
