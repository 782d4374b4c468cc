"""Sharded tensors on disk, by torch.distributed.checkpoint, as data and never as code.

Only tensors are saved (the python side is JSON beside them), and the index is read by an unpickler that knows nothing
but the index's own classes. When to save, and what a whole checkpoint is, belongs to `checkpoint`.
"""

from __future__ import annotations

import enum
import pickle
from collections.abc import Sequence
from pathlib import Path, PosixPath
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

_ALLOWED = {
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "torch._utils": {"_rebuild_device"},
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex", "StorageMeta",
        "_MEM_FORMAT_ENCODING", "BytesStorageMetadata",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
}  # fmt: skip


class IndexUnpickler(pickle.Unpickler):
    """Unpickles a checkpoint's index and nothing else; UnpicklingError names what has no place in it."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return enum_member  # how Python 3.11.0 to 3.11.3 pickle a member of an Enum
        if name == "PosixPath" and module in ("pathlib", "pathlib._local"):
            return PosixPath  # where it was saved, which is not used; Python 3.13 alone has the second module
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint")


def enum_member(kind: Any, name: str) -> Any:
    """The member of an Enum, and no other attribute of anything."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise pickle.UnpicklingError(f"attribute {name!r} of {kind!r} has no place in a checkpoint")
    return kind[name]


class DataReader(FileSystemReader):
    """Reads what `save` wrote, and refuses anything but tensors."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / ".metadata"
        with path.open("rb") as stream:
            index = IndexUnpickler(stream).load()
        for name, entry in index.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise ValueError(f"{path}: {name} is {type(entry).__name__}, not a tensor")
        index.storage_meta = index.storage_meta or StorageMeta()
        index.storage_meta.load_id = self.load_id
        assert isinstance(index, Metadata)
        return index


def save(folder: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Every rank writes and syncs its own shards into `folder`, replicated tensors once. Collective."""
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizers)["state"]}
    save_sharded(state, storage_writer=FileSystemWriter(folder, single_file_per_rank=True, sync_files=True))


def files_of_rank(folder: Path, rank: int) -> list[str]:
    """Names of the shards that this rank wrote."""
    return sorted(path.name for path in folder.glob(f"__{rank}_*.distcp"))


def index_files() -> list[str]:
    """Names of what rank 0 wrote for all."""
    return [".metadata"]


def load(folder: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer] | None) -> None:
    """Fill model and optimizers in place, on any world size and strategy. Collective.

    The optimizers' groups (learning rate, betas) come from the config of today, not from the file.
    """
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    groups: Any = None
    if optimizers is not None:
        current = get_optimizer_state_dict(model, optimizers)
        state["optimizer"], groups = current["state"], current["param_groups"]
    load_sharded(state, storage_reader=DataReader(folder))
    set_model_state_dict(model, state["model"])
    if optimizers is not None:
        set_optimizer_state_dict(model, optimizers, {"state": state["optimizer"], "param_groups": groups})


def full_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights and buffers, whole, on rank 0's CPU; empty on the other ranks. Collective."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    return {name: tensor.contiguous() for name, tensor in whole.items() if isinstance(tensor, torch.Tensor)}
