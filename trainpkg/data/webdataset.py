"""WebDataset shards by index: where each sample's files lie in the tar files is read once from their headers.

So they can be shuffled as a whole, shared by any number of ranks and gone on with, as any data in files. Shards are
plain tar files, on a file system that can be read at any place.
"""

from __future__ import annotations

import glob
import io
import itertools
import json
import os
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainpkg.config import Run, WebDatasetData
from trainpkg.data import AbsentError, Splits, digest_of
from trainpkg.data.pictures import SUFFIXES, Pictures
from trainpkg.data.samples import MapStyle, held_out_by_name, require_known
from trainpkg.errors import UserError

Part = tuple[int, int]  # first byte, number of bytes
IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)


@dataclass
class Entry:
    """A sample: its shard, its name, and where the files of the extensions that are read lie."""

    shard: str
    key: str
    parts: dict[str, Part] = field(default_factory=dict)


class Shards:
    """(input, target) of each entry."""

    def __init__(
        self,
        config: WebDatasetData,
        entries: list[Entry],
        pictures: Pictures | None,
        training: bool,
        classes: tuple[str, int | None],
    ) -> None:
        self._inputs, self._target = config.inputs.split(";"), config.target
        self._entries, self._pictures, self._training, self._classes = entries, pictures, training, classes
        self._open: dict[str, int] = {}  # descriptors, read at given places: workers may share them
        self.draws = training and pictures is not None and pictures.alters

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        entry = self._entries[index]
        extension = next(one for one in self._inputs if one in entry.parts)
        target = self._decoded(entry, self._target)
        if isinstance(target, int):
            require_known(f"{entry.shard}: {entry.key}.{self._target}", target, *self._classes)
        return self._decoded(entry, extension), target

    def _decoded(self, entry: Entry, extension: str) -> Any:
        first, count = entry.parts[extension]
        if entry.shard not in self._open:
            self._open[entry.shard] = os.open(entry.shard, os.O_RDONLY | os.O_CLOEXEC)
        content = os.pread(self._open[entry.shard], count, first)
        name = f"{entry.shard}: {entry.key}.{extension}"
        kind = extension.rpartition(".")[2].lower()
        if kind in IMAGES:
            assert self._pictures is not None
            return self._pictures.tensor(content, name, self._training)
        try:
            return decoded(kind, content)
        except (ValueError, RuntimeError, EOFError) as error:
            raise UserError(f"{name} cannot be read as {kind}: {error}") from error


def decoded(kind: str, content: bytes) -> Tensor | int:
    """What is no image. ValueError for a kind that is not known."""
    match kind:
        case "cls":
            return int(content)
        case "json":
            return torch.tensor(json.loads(content))
        case "npy":
            return torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False))
        case "pth" | "pt":
            loaded: Tensor = torch.load(io.BytesIO(content), weights_only=True)
            return loaded
    raise ValueError(f"known are {', '.join((*IMAGES, 'npy', 'pth', 'cls', 'json'))}")


def load(run: Run, device: torch.device) -> Splits:
    """UserError for shards that are missing, compressed, or hold samples without input or target."""
    config = run.data
    assert isinstance(config, WebDatasetData)
    train = entries("data.path", config.path, config)
    if config.validation is not None:
        held_out = entries("data.validation", config.validation, config)
    else:
        chosen = held_out_by_name((entry.key for entry in train), config.validation_fraction)
        held_out = [entry for entry, out in zip(train, chosen, strict=True) if out]
        train = [entry for entry, out in zip(train, chosen, strict=True) if not out]
    if not train or not held_out:
        raise UserError(
            f"data.path = {config.path!r}: {len(train)} training and {len(held_out)} held-out samples; give "
            f"data.validation, or another data.validation_fraction than {config.validation_fraction}"
        )
    uses = {extension.rpartition(".")[2].lower() for entry in (train[0], held_out[0]) for extension in entry.parts}
    pictures = Pictures(config) if uses & set(IMAGES) else None
    classes = "model.classes", getattr(run.model, "classes", None)
    if run.task == "images" and isinstance(given := (run.task_kwargs or {}).get("num_classes"), int):
        classes = "task_kwargs.num_classes", given  # all that is known with a model of the user's own
    return Splits(
        MapStyle(Shards(config, train, pictures, True, classes)),
        MapStyle(Shards(config, held_out, pictures, False, classes)),
        digest_of(*(f"{entry.key} {sorted(entry.parts.items())}" for entry in (*train, *held_out))),
        {},
        num_classes=classes[1],
    )


def entries(key: str, pattern: str, config: WebDatasetData) -> list[Entry]:
    """All samples of the shards, in the order of the shards' names."""
    inputs, wanted = config.inputs.split(";"), {*config.inputs.split(";"), config.target}
    found: list[Entry] = []
    for shard in shards(key, pattern):
        first = len(found)
        try:
            with tarfile.open(shard, "r:") as archive:
                for member in archive:
                    if member.isfile():
                        base, _, extension = member.name.rpartition("/")[2].partition(".")
                        name = os.path.join(os.path.dirname(member.name), base)  # noqa: PTH118, PTH120
                        if len(found) == first or found[-1].key != name:
                            found.append(Entry(shard, name))
                        if extension in wanted:
                            found[-1].parts[extension] = (member.offset_data, member.size)
        except (tarfile.TarError, OSError) as error:
            raise UserError(f"{key}: {shard} cannot be read as a plain tar file: {error}; unpack .gz first") from error
    for entry in found:
        if config.target not in entry.parts or not any(one in entry.parts for one in inputs):
            raise UserError(
                f"{key}: {entry.shard}: sample {entry.key!r} has {sorted(entry.parts) or 'neither'} of "
                f"data.inputs = {config.inputs!r} and data.target = {config.target!r}"
            )
    return found


def shards(key: str, pattern: str) -> list[str]:
    """The files of a pattern: {0000..0031}, {a,b} and * are filled in."""
    pieces = re.split(r"\{([^{}]*)\}", os.path.expanduser(pattern))  # noqa: PTH111  keeps patterns as they are
    choices = [one(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    names = ["".join(parts) for parts in itertools.product(*choices)]
    found = [path for name in names for path in sorted(glob.glob(name) if glob.has_magic(name) else [name])]  # noqa: PTH207
    missing = [path for path in found if not Path(path).is_file()]
    if missing or not found:
        raise AbsentError(f"{key} = {pattern!r}: there is no {missing[0] if missing else 'such file'} in {Path.cwd()}")
    return found


def one(braces: str) -> list[str]:
    """What stands for the inside of braces."""
    limits = re.fullmatch(r"(\d+)\.\.(\d+)", braces)
    if limits is None:
        return braces.split(",")
    return [str(number).zfill(len(limits[1])) for number in range(int(limits[1]), int(limits[2]) + 1)]
