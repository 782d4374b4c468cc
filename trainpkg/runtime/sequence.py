"""Sequences shared by neighbouring ranks of a node: each has a piece, and all of them meet in attention alone.

Around attention one all-to-all turns "all heads of my piece" into "my heads of the whole sequence", another turns the
result back (DeepSpeed-Ulysses, https://arxiv.org/abs/2309.14509): exact, forward and backward, and causal as before.
A model knows nothing of it and offers two places: `mix` of its attention parts, the function that mixes tokens, and its
own `piece`, which of several equally long pieces of the sequences it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trainpkg.runtime import mesh
from trainpkg.runtime.distributed import RankContext


@dataclass(frozen=True)
class Pieces:
    """`size` ranks share each sequence, cut into as many equal pieces; `index`: which one is this rank's."""

    size: int = 1
    index: int = 0

    def own(self, tokens: Tensor) -> Tensor:
        """This rank's piece [N, T / size] of whole sequences [N, T]."""
        return tokens.chunk(self.size, dim=1)[self.index] if self.size > 1 else tokens


def share(ctx: RankContext, size: int, module: nn.Module) -> Pieces:
    """Let `module` be given pieces of sequences. UserError where the ranks of a node do not fit. Collective."""
    if size == 1:
        return Pieces()
    group = mesh.neighbours(ctx, size)
    pieces = Pieces(size, ctx.rank % size)
    mixing = [part for part in module.modules() if hasattr(part, "mix")]
    assert mixing and hasattr(module, "piece"), "the config asks for a model that has a sequence"
    module.piece = pieces.index  # type: ignore[assignment]
    for part in mixing:
        part.mix = Attention(group, size)  # type: ignore[assignment]
    return pieces


class Attention:
    """F.scaled_dot_product_attention of pieces: q, k, v and the result are [N, heads, T / size, dim]."""

    def __init__(self, group: dist.ProcessGroup, size: int) -> None:
        self._group, self._size = group, size

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # what is compiled ends before it and goes on after it
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """`options`: as there. Dropout is drawn for this rank's heads."""
        size, group = self._size, self._group
        n, heads, length, dim = q.shape
        parts = [x.view(n, size, heads // size, length, dim).movedim(1, 0) for x in (q, k, v)]
        by_heads = torch.stack(parts, dim=1)
        by_pieces = exchange(by_heads, group)  # [size, 3, N, heads / size, T / size, dim]
        mixed = F.scaled_dot_product_attention(*by_pieces.movedim(0, 3).flatten(3, 4), **options)
        pieces = mixed.view(n, heads // size, size, length, dim).movedim(2, 0)
        back = exchange(pieces, group)  # [size, N, heads / size, T / size, dim]
        return back.movedim(0, 1).flatten(1, 2)


def exchange(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Part i of [size, ...] goes to rank i of the group, which puts it where this rank is. Its own inverse."""
    found: Tensor = Exchange.apply(parts, group)  # type: ignore[no-untyped-call]
    return found


class Exchange(torch.autograd.Function):
    """... with gradients, which go the same way back."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return exchanged(parts, group)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        return exchanged(gradients, ctx.group), None


def exchanged(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = parts.contiguous()  # gloo garbles strided tensors without a word
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received
