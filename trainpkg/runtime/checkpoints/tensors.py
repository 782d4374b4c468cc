"""The tensors of a checkpoint: their names in it, which of them a rank saves, and making room for them to be loaded.

How they lie on disk belongs to `shards`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor


def of_model(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by their names in a checkpoint: the very tensors, not copies."""
    return {f"model.{name}": tensor for name, tensor in model.state_dict().items()}


def of_training(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Those, and what the optimizers keep for each weight: nothing for weights that had no gradient yet."""
    found = of_model(model)  # first of all: it makes whole weights shards again, and those the optimizers know
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, kept in optimizer.state.items():
            found |= {f"optimizer.{names[parameter]}.{k}": v for k, v in kept.items() if isinstance(v, Tensor)}
    return found


def make_room(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], saved: Collection[str]) -> None:
    """Let optimizers that made no step yet have what was saved of them, with any values, to be loaded into it."""
    get_optimizer_state_dict(model, optimizers)  # which makes a step that changes no weight
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter in list(optimizer.state):
            if not any(f"optimizer.{names[parameter]}.{key}" in saved for key in optimizer.state[parameter]):
                del optimizer.state[parameter]  # no gradient had come yet: what is kept begins with the first


def of_average(averages: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Averaged weights by their names in a checkpoint."""
    return {f"ema.{name}": tensor for name, tensor in averages.items()}


def share(parts: Mapping[str, Tensor], rank: int, world_size: int) -> dict[str, Tensor]:
    """The tensors that this rank saves: of those of which several ranks have the same piece, one rank saves it.

    Every rank finds the same division without asking: the largest first, each to whom has least so far. So a replicated
    model is copied and written by all ranks together, not by each.
    """
    loads: dict[int, list[tuple[int, int]]] = {}
    kept = {}
    for name, tensor in sorted(parts.items(), key=lambda part: (-part[1].numel(), part[0])):
        num_copies, own = copies(tensor, rank, world_size)
        load = loads.setdefault(num_copies, [(0, i) for i in range(num_copies)])
        size, owner = load[0]
        heapq.heapreplace(load, (size + tensor.numel(), owner))
        if owner == own:
            kept[name] = tensor
    return kept


def copies(tensor: Tensor, rank: int, world_size: int) -> tuple[int, int]:
    """(how many ranks have the piece of the tensor that this rank has, which of them this rank is)."""
    if not isinstance(tensor, DTensor):
        return world_size, rank
    count, own = 1, 0
    mesh = tensor.device_mesh
    for size, place, placement in zip(mesh.shape, mesh.get_coordinate() or (), tensor.placements, strict=True):
        if placement.is_replicate():
            count, own = count * size, own * size + place
    return count, own


def renamed(parts: Mapping[str, Tensor], saved: Collection[str], averaged: bool) -> dict[str, Tensor]:
    """The model's tensors by the names to load them from: those of their averages where `averaged`, and saved."""
    averages = {name: "ema." + name.removeprefix("model.") for name in parts}
    return {averages[name] if averaged and averages[name] in saved else name: part for name, part in parts.items()}


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without shards, on rank 0's CPU; empty on the other ranks. Collective.

    None shares memory with another, as tied weights do: safetensors files hold each by itself.
    """
    found: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if not dist.is_initialized() or dist.get_rank() == 0:
            here = full.detach().cpu().contiguous()
            place = here.untyped_storage().data_ptr()
            found[name] = here.clone() if place in places else here
            places.add(place)
    return found


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers, whole, on rank 0's CPU; empty on the other ranks. Collective."""
    return whole(model.state_dict())
