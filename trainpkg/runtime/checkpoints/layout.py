"""How a rank's tensors lie in its file, and the index of all files.

A file holds one piece of each of its tensors. Its header's metadata tells, under `pieces`, where a piece begins in the
whole tensor and how large that is; all of these make index.json, so that a reader opens only what it needs. The format
is safetensors, https://github.com/huggingface/safetensors: 8 bytes with the header's length, the header in JSON, then
the data without gaps. Standard library only.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "index.json"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Piece:
    """What a rank saves of one tensor. `dtype` as safetensors calls it; `begins` and `whole`: place in the tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    begins: tuple[int, ...]
    whole: tuple[int, ...]


def header(pieces: list[Piece]) -> bytes:
    """What stands before the data of these pieces, which follow in this order."""
    tree: dict[str, Any] = {"__metadata__": {"pieces": json.dumps({p.name: [p.begins, p.whole] for p in pieces})}}
    end = 0
    for piece in pieces:
        begin, end = end, end + piece.num_bytes
        tree[piece.name] = {"dtype": piece.dtype, "shape": piece.shape, "data_offsets": [begin, end]}
    text = json.dumps(tree, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # as safetensors does: data begin at a multiple of 8
    return struct.pack("<Q", len(text)) + text


def read_header(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        tree: dict[str, Any] = json.loads(stream.read(size))
    return tree


def index(folder: Path, files: list[str]) -> dict[str, Any]:
    """{files, tensors: {name: {dtype, shape, pieces: [[number of the file, where it begins, its shape], ...]}}}."""
    tensors: dict[str, dict[str, Any]] = {}
    for number, file in enumerate(files):
        tree = read_header(folder / file)
        for name, (begins, whole) in json.loads(tree["__metadata__"]["pieces"]).items():
            entry = tensors.setdefault(name, {"dtype": tree[name]["dtype"], "shape": whole, "pieces": []})
            entry["pieces"].append([number, begins, tree[name]["shape"]])
    return {"files": files, "tensors": tensors}
