"""Initial weights: each from a seed of its own, so that any strategy and any number of ranks begins with the same.

A model on the meta device has shapes and no memory. It is spread first; then one tensor after the other is filled,
whole, on the host, and each rank keeps its part. How a tensor is filled is the model's own method `initialise`; a model
without it was built for real, and its weights are only moved.
"""

from __future__ import annotations

import zlib
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainpkg.runtime.seeding import mix, seed_all


@torch.no_grad()
def fill(module: nn.Module, seed: int, device: torch.device, shards_on: torch.device | None = None) -> None:
    """Bring `module`, spread or not, to `device` (its shards to `shards_on`) and fill what had no memory, in place."""

    def place(tensor: Tensor) -> Tensor:
        where = shards_on or device if isinstance(tensor, DTensor) else device
        return torch.empty_like(tensor, device=where) if tensor.is_meta else tensor.to(where)

    empty = [name for name, tensor in tensors_of(module) if tensor.is_meta]
    tied = [homes for homes in homes_of(module) if len(homes) > 1]
    module._apply(place)  # type: ignore[no-untyped-call]
    for (first, name), *others in tied:
        for part, other in others:
            part._parameters[other] = first._parameters[name]
    found = dict(tensors_of(module))
    for name in empty:
        whole = torch.empty(found[name].shape, dtype=found[name].dtype)
        seed_all(mix("weights", seed, name))
        module.initialise(name, whole)  # type: ignore[operator]
        keep(whole, found[name])


def keep(whole: Tensor, mine: Tensor) -> None:
    """Copy what this rank holds of `whole`, which is equal on all ranks: nothing is sent."""
    if isinstance(mine, DTensor):
        shards = distribute_tensor(whole, mine.device_mesh, mine.placements, src_data_rank=None)
        mine.to_local().copy_(shards.to_local())
    else:
        mine.copy_(whole)


def digest(module: nn.Module) -> str:
    """Checksum over all that has memory already."""
    checksum = 0
    for _, tensor in tensors_of(module):
        if not tensor.is_meta:
            checksum = zlib.crc32(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"


def tensors_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers by name; a tied one once, by its first name."""
    return list(chain(module.named_parameters(), module.named_buffers()))


def homes_of(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Where each parameter is an attribute: (module, name), several for tied ones."""
    homes: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                homes.setdefault(parameter, []).append((part, name))
    return list(homes.values())
