"""A rank's pieces of tensors as one file, and reading them again on any number of ranks: data, and never code.

Files are safetensors (see `layout`); who needs which part of which piece is planned by torch.distributed.checkpoint.
Which tensors a checkpoint holds, and which of them a rank saves, belongs to `tensors`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.tensor import DTensor

from trainpkg.runtime.checkpoints import layout

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_NAMES = {name: dtype for dtype, name in DTYPES.items()}


class Shards:
    """This rank's pieces of the given tensors, in the order of its file."""

    def __init__(self, parts: Mapping[str, Tensor]) -> None:
        # The widest types first, so that each lies in memory as its type wants; a rank may have no row of a small one.
        named = sorted(parts.items(), key=lambda part: (-part[1].element_size(), part[0]))
        pieces = [(name, tensor, local_piece(tensor)) for name, tensor in named]
        pieces = [piece for piece in pieces if piece[2].numel()]
        self._pieces = [piece for _, _, piece in pieces]
        places = Places()
        self.header = layout.header([
            layout.Piece(name, DTYPES[p.dtype], tuple(p.shape), p.nbytes, places[tensor], tuple(tensor.shape))
            for name, tensor, p in pieces
        ])  # fmt: skip

    @property
    def num_bytes(self) -> int:
        return len(self.header) + sum(piece.nbytes for piece in self._pieces)

    def buffers(self) -> Iterator[Any]:
        """The file's content, one after the other; each is good until the next is asked for."""
        yield self.header
        for piece in self._pieces:
            yield piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

    def copy_to(self, memory: Tensor) -> None:
        """The file's content, into the host's memory (uint8) at its start."""
        end = len(self.header)
        memory[:end] = torch.frombuffer(bytearray(self.header), dtype=torch.uint8)
        for piece in self._pieces:
            begin, end = end, end + piece.nbytes
            memory[begin:end].view(piece.dtype).view(piece.shape).copy_(piece, non_blocking=True)
        if any(piece.is_cuda for piece in self._pieces):
            torch.cuda.synchronize()


def local_piece(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Places:
    """Where this rank's pieces begin in whole tensors: found out once per shape and way of sharding, as it is slow."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[int, ...]] = {}

    def __getitem__(self, tensor: Tensor) -> tuple[int, ...]:
        if not isinstance(tensor, DTensor):
            return (0,) * tensor.ndim
        key = (tensor.shape, tensor.placements, id(tensor.device_mesh))
        if key not in self._known:
            (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
            self._known[key] = tuple(chunk.offsets)
        return self._known[key]


class Reader(FileSystemReader):
    """Reads what ranks wrote as `Shards`, by index.json."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        index = read_index(Path(self.path))
        entries: dict[str, Any] = {}
        places = {}
        for name, entry in index["tensors"].items():
            chunks = []
            for number, begins, shape in entry["pieces"]:
                chunks.append(ChunkStorageMetadata(torch.Size(begins), torch.Size(shape)))
                places[MetadataIndex(name, begins)] = (index["files"][number], begins)
            properties = TensorProperties(dtype=_NAMES[entry["dtype"]])
            entries[name] = TensorStorageMetadata(properties, torch.Size(entry["shape"]), chunks)
        return Metadata(entries, storage_data=places, storage_meta=StorageMeta(load_id=self.load_id))

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        wanted: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            wanted[self.storage_data[item.storage_index][0]].append(item)
        for name, items in wanted.items():
            with safe_open(Path(self.path) / name, "pt") as file:
                for item in items:
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(cut(file, item))
                    planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done


def cut(file: Any, item: ReadItem) -> Tensor:
    """The part of a piece that is asked for; no more of it is read."""
    name = item.storage_index.fqn
    if not item.lengths:
        whole: Tensor = file.get_tensor(name)
        return whole
    ranges = zip(item.storage_offsets, item.lengths, strict=True)
    part: Tensor = file.get_slice(name)[tuple(slice(begin, begin + length) for begin, length in ranges)]
    return part


def read_index(folder: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((folder / layout.INDEX).read_text())
    return tree


def whole(folder: Path, index: Mapping[str, Any], name: str) -> Tensor:
    """One tensor, put together from its pieces: in one process, and no more of it in memory than the tensor twice."""
    entry = index["tensors"][name]
    found = torch.empty(entry["shape"], dtype=_NAMES[entry["dtype"]])
    for number, begins, shape in entry["pieces"]:
        with safe_open(folder / index["files"][number], "pt") as file:
            places = tuple(slice(begin, begin + length) for begin, length in zip(begins, shape, strict=True))
            found[places] = file.get_tensor(name)
    return found


def load(folder: Path, parts: Mapping[str, Tensor]) -> None:
    """Fill the tensors in place by their names, on any number of ranks and strategy. Collective."""
    load_sharded(dict(parts), storage_reader=Reader(folder))


def file_of(rank: int) -> str:
    return f"rank-{rank:05d}{layout.SUFFIX}"
