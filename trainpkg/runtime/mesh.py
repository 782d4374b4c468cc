"""The ranks as rows and columns: which of them share shards, and which hold the same."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainpkg.errors import UserError
from trainpkg.runtime.distributed import RankContext, gather_rows

__all__ = ["DeviceMesh", "local", "neighbours", "nodes_by_ranks", "one_row"]


def one_row(ctx: RankContext) -> DeviceMesh:
    """All ranks share shards. The very group of `distributed`, so that its time limits hold here too."""
    world = dist.group.WORLD
    assert world is not None, "ranks join before a model is spread"
    return DeviceMesh.from_group(world, ctx.device.type, mesh_dim_names=("shard",))


def nodes_by_ranks(ctx: RankContext) -> DeviceMesh:
    """[nodes, ranks of a node]: shards inside a node, the same over nodes. UserError where nodes differ. Collective."""
    sizes = ranks_of_nodes(ctx)
    if len(set(sizes)) > 1 or ctx.world_size % ctx.local_world_size:
        raise UserError(
            f"strategy = 'hsdp' needs nodes with equally many ranks; the ranks' nodes have {sizes}: use fsdp"
        )
    rows = torch.arange(ctx.world_size).view(-1, ctx.local_world_size)
    names = ("replicate", "shard")
    groups = [group_of(ctx, rows.T), group_of(ctx, rows)]
    return DeviceMesh.from_group(groups, ctx.device.type, mesh=rows, mesh_dim_names=names)


def neighbours(ctx: RankContext, size: int) -> dist.ProcessGroup:
    """The `size` consecutive ranks of one node that this one is among. UserError where it cannot be. Collective."""
    sizes = ranks_of_nodes(ctx)
    if any(count % size for count in sizes):
        raise UserError(
            f"sequence_parallel = {size} stays inside a node and does not divide its number of ranks; the ranks' nodes "
            f"have {sizes}"
        )
    return group_of(ctx, torch.arange(ctx.world_size).view(-1, size))


def ranks_of_nodes(ctx: RankContext) -> list[int]:
    """For each rank, how many its node has. Collective."""
    return [int(size) for (size,) in gather_rows(ctx, [float(ctx.local_world_size)])]


def group_of(ctx: RankContext, rows: Tensor) -> dist.ProcessGroup:
    """This rank's group, where each row is one. Collective."""
    timeout = timedelta(seconds=ctx.collective_timeout_s)
    group, _ = dist.new_subgroups_by_enumeration(rows.tolist(), timeout=timeout)  # type: ignore[no-untyped-call]
    assert isinstance(group, dist.ProcessGroup)
    return group


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
