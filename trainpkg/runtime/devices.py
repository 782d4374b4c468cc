"""Which of the GPUs that a rank is shown is its own: two pure functions decide, `pick` and `settle` ask.

Slurm shows the ranks of a node all of its GPUs, or one each (--gpus-per-task), or subsets (--gpu-bind=closest: those
near the CPUs of each), and CUDA counts from 0 in whatever is shown. So neither the local rank nor the local rank modulo
the number shown is the index: with two sockets, local ranks 0 and 2 share a subset, and so do 1 and 3.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import Store

from trainpkg.errors import UserError

if TYPE_CHECKING:
    from trainpkg.runtime.distributed import RankContext


def own_index(num_shown: int, local_rank: int, local_world_size: int) -> int | None:
    """The index of a rank that is shown one GPU, or at least one per rank of its node; None: the others decide."""
    if num_shown == 1:
        return 0
    return local_rank if num_shown >= local_world_size else None


def index_among(shown: Sequence[Sequence[str]], local_rank: int) -> int:
    """The index where the ranks of a node are shown subsets, such that no two ranks get the same GPU.

    Args:
        shown: for each local rank the GPUs that it is shown, by names that mean the same GPU in every process (UUIDs).

    Raises:
        UserError: there are fewer GPUs than ranks that are shown nothing else.
    """
    owner: dict[str, int] = {}

    def give(rank: int, tried: set[str]) -> bool:
        """Give `rank` the first free GPU, else one whose owner can take another."""
        free = next((name for name in shown[rank] if name not in owner), None)
        for name in [free] if free else shown[rank]:
            if name not in tried:
                tried.add(name)
                if name not in owner or give(owner[name], tried):
                    owner[name] = rank
                    return True
        return False

    for rank in range(len(shown)):
        tried: set[str] = set()
        if not give(rank, tried):
            ranks = [other for other in range(rank + 1) if set(shown[other]) & tried]
            raise UserError(
                f"local ranks {', '.join(map(str, ranks))} of this node are shown {len(tried)} GPU(s) together "
                f"({', '.join(sorted(tried))}), one too few: look at --gpu-bind and --gpus-per-task, or lower "
                "launch.gpus_per_node"
            )
    return next(index for index, name in enumerate(shown[local_rank]) if owner.get(name) == local_rank)


def pick(kind: str, local_rank: int, local_world_size: int) -> torch.device:
    """cpu, or this rank's GPU by what it alone is shown; where that does not tell, `settle` decides."""
    if kind == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if visible == 0:
        raise UserError("launch.device = cuda, but this process sees no GPU; ask for GPUs, or set launch.device: cpu")
    index = own_index(visible, local_rank, local_world_size)
    return torch.device("cuda", local_rank % visible if index is None else index)


def settle(ctx: RankContext, store: Store) -> RankContext:
    """The context with this rank's GPU, where ranks of a node are shown fewer than there are ranks.

    Raises UserError where two ranks would have to share a GPU, unless `ctx.shares_gpus` (launch.oversubscribe).
    """
    shown = torch.cuda.device_count() if ctx.device.type == "cuda" else 0
    if shown == 0 or shown >= ctx.local_world_size:
        return ctx
    names = [str(torch.cuda.get_device_properties(index).uuid) for index in range(shown)]
    keys = [f"gpus/{ctx.node_rank}/{local_rank}" for local_rank in range(ctx.local_world_size)]
    store.set(keys[ctx.local_rank], json.dumps(names))
    shown_to = [json.loads(store.get(key)) for key in keys]
    try:
        index = index_among(shown_to, ctx.local_rank)
    except UserError:
        if not ctx.shares_gpus:
            raise
        return ctx
    ctx.say(f"of the GPUs shown, {', '.join(names)}, this rank's is {names[index]}")
    return dataclasses.replace(ctx, device=torch.device("cuda", index))
