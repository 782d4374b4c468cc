"""Sharded tensors on disk, by torch.distributed.checkpoint, as data and never as code.

Only tensors are saved (the python side is JSON beside them), and the index is read by an unpickler that knows nothing
but the index's own classes. When to save, and what a whole checkpoint is, belongs to `checkpoint`.
"""

from __future__ import annotations

import enum
import heapq
import os
import pickle
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path, PosixPath
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.utils.serialization import config as serialization

from trainpkg.runtime import manifest
from trainpkg.runtime.distributed import RankContext

INDEX = ".metadata"
LEAST_NICE = 19
Publish = Callable[[manifest.Files], None]

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


class Sums(FileSystem):
    """The file system, and size and checksum of each file that was written."""

    def __init__(self) -> None:
        self.files: manifest.Files = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            if mode != "wb":
                yield stream
                return
            summed = manifest.Summed(stream)
            yield summed
            self.files[Path(path).name] = summed.facts


class Writer(FileSystemWriter):
    """Writes and syncs this rank's shards and `texts` ({file: content}); then rank 0 alone calls `publish`.

    `publish` is given the files of all ranks, with sizes and checksums. By torch's save all ranks have one
    outcome: what is raised on any of them is raised on all, as a CheckpointException. `beside`: training goes on
    meanwhile, and has the processors first.
    """

    def __init__(self, folder: Path, texts: Mapping[str, str], publish: Publish, beside: bool) -> None:
        super().__init__(folder, single_file_per_rank=True, sync_files=True)
        self.fs: Sums = Sums()
        self._folder, self._texts, self._publish, self._beside = folder, texts, publish, beside

    def set_up_storage_writer(self, is_coordinator: bool, *arguments: Any, **options: Any) -> None:
        if self._beside:  # called first of all, in the thread that torch starts for this one save
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_NICE)
        super().set_up_storage_writer(is_coordinator, *arguments, **options)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        with serialization.patch("save.compute_crc32", False):  # type: ignore[attr-defined]  # each file has its own
            results = super().write_data(plan, planner).wait()
        for name, text in self._texts.items():
            manifest.write_synced(self._folder / name, text)
        files = self.fs.files | manifest.describe(self._folder, list(self._texts))
        results += [WriteResult(MetadataIndex(name), facts["bytes"], facts) for name, facts in files.items()]
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = [result for of_rank in results for result in of_rank]
        files = {result.index.fqn: result.storage_data for result in written if isinstance(result.storage_data, dict)}
        super().finish(metadata, [[result for result in written if not isinstance(result.storage_data, dict)]])
        self._publish(files | manifest.describe(self._folder, [INDEX]))


class Here:
    """Saves while training waits. Collective."""

    def save(self, parts: Mapping[str, Tensor], writer: Writer) -> Future[Any]:
        """Returns when the save has ended; the future tells how."""
        future: Future[Any] = Future()
        try:
            future.set_result(save_sharded(nested(parts), storage_writer=writer))
        except (OSError, RuntimeError, CheckpointException) as error:
            future.set_exception(error)
        return future


class Beside:
    """Saves while training goes on, from a copy in the host's memory that is kept for the next save. Collective.

    The ranks' threads meet in a group of their own: in that of training their collectives would mix.
    """

    def __init__(self, ctx: RankContext, timeout_s: float) -> None:
        cuda = ctx.device.type == "cuda"
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._stager: AsyncStager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda
            )
        )

    def save(self, parts: Mapping[str, Tensor], writer: Writer) -> Future[Any]:
        """Returns when the copy is made; the save ends with the future."""
        state = nested(parts)
        future = async_save(state, storage_writer=writer, process_group=self._group, async_stager=self._stager)
        assert isinstance(future, Future)
        return future


def nested(parts: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The same names in two parts: torch spends time on each entry of the outer mapping."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in parts.items():
        outer, inner = name.split(".", 1)
        found.setdefault(outer, {})[inner] = tensor
    return found


def sizes(folder: Path) -> dict[str, torch.Size]:
    """Shape of every tensor of a checkpoint."""
    index = DataReader(folder).read_metadata()
    return {name: entry.size for name, entry in index.state_dict_metadata.items() if hasattr(entry, "size")}


def renamed(parts: Mapping[str, Tensor], saved: Collection[str], averaged: bool) -> dict[str, Tensor]:
    """The model's tensors by the names to load them from: those of their averages where `averaged`, and saved."""
    averages = {name: "ema." + name.removeprefix("model.") for name in parts}
    return {averages[name] if averaged and averages[name] in saved else name: part for name, part in parts.items()}


def load(folder: Path, parts: Mapping[str, Tensor]) -> None:
    """Fill the tensors in place by their names, on any number of ranks and strategy. Collective."""
    load_sharded(dict(parts), storage_reader=DataReader(folder))


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without shards, on rank 0's CPU; empty on the other ranks. Collective."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if not dist.is_initialized() or dist.get_rank() == 0:
            found[name] = full.detach().cpu().contiguous()
    return found


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers, whole, on rank 0's CPU; empty on the other ranks. Collective."""
    return whole(model.state_dict())
