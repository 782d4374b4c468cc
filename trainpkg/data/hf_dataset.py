"""A folder of Hugging Face `datasets`, as save_to_disk writes it: memory-mapped, read by row, never downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainpkg import named
from trainpkg.config import HuggingFaceData, Run
from trainpkg.data import AbsentError, Splits, digest_of, require
from trainpkg.data.samples import MapStyle, held_out_by_number, require_known
from trainpkg.errors import UserError
from trainpkg.mistakes import nearest


class Table:
    """(input, target) of rows; `numbers`: which of them, in order. `limit`: key and number of tokens, or classes."""

    draws = False

    def __init__(self, rows: Any, numbers: Tensor, config: HuggingFaceData, limit: tuple[str, int | None]) -> None:
        self._rows, self._numbers, self._config, self._limit = rows, numbers, config, limit
        self._transform = None
        if config.transform is not None:
            maker = named.load("data.transform", config.transform)
            self._transform = named.call("data.transform", config.transform, maker, config.transform_kwargs)
            self.draws = True

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        number = int(self._numbers[index])
        row = self._rows[number]
        if self._transform is not None:
            return self._transform(row)
        inputs = value(row[self._config.inputs])
        target = inputs if self._config.target is None else value(row[self._config.target])
        if target.numel() and target.dtype == torch.int64:
            for extreme in target.aminmax():
                require_known(f"{self._config.path}: row {number}", int(extreme), *self._limit)
        if self._config.target is None:
            return inputs[:-1].contiguous(), inputs[1:].contiguous()
        return inputs, target


def value(cell: Any) -> Tensor:
    """A cell as a tensor: whole numbers as int64, others as float32, images as float32 [channels, H, W] in [-1, 1]."""
    array = np.asarray(cell)
    if hasattr(cell, "getbands"):  # an image, as Pillow has it
        pixels = torch.from_numpy(np.array(cell, dtype=np.float32)) / 127.5 - 1
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
    if array.dtype.kind not in "biuf":
        raise UserError(f"data.inputs, data.target: {cell!r} is no number; use data.transform")
    return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))


def load(run: Run, device: torch.device) -> Splits:
    """UserError for a folder, split or column that is not there."""
    config = run.data
    assert isinstance(config, HuggingFaceData)
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # read at the import
        os.environ.setdefault(variable, "1")
    datasets = require("datasets", "data.name = 'hf_dataset'", "datasets")
    path = Path(config.path).expanduser()
    try:
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise AbsentError(
            f"data.path: {path.absolute()} cannot be read as a folder of save_to_disk: {error}"
        ) from error
    several = isinstance(found, dict)
    train = split(found, "data.split", config.split) if several else found
    wanted: list[tuple[str, str | None]] = [("data.inputs", config.inputs), ("data.target", config.target)]
    for key, name in wanted:
        if config.transform is None and name is not None and name not in train.column_names:
            raise UserError(f"{key} = {name!r}: no such column{nearest(name, train.column_names, 'column')}")
    if config.validation is not None:
        held_out = split(found, "data.validation", config.validation) if several else None
        if held_out is None:
            raise UserError(f"data.validation = {config.validation!r}: {path} holds one split; leave it out")
        numbers = torch.arange(len(train)), torch.arange(len(held_out))
    else:
        held_out, numbers = train, held_out_by_number(len(train), config.validation_fraction)
    if not len(numbers[0]) or not len(numbers[1]):
        raise UserError(f"data.path: {path} has too few rows to hold any out")
    first = train[0].get(config.inputs)
    tokens = len(first) - (config.target is None) if run.task == "language" and first is not None else None
    feature = train.features.get(config.target) if config.target else None
    classes = getattr(feature, "num_classes", None) or getattr(run.model, "classes", None)
    limit = (
        ("model.vocabulary", getattr(run.model, "vocabulary", None))
        if config.target is None
        else ("the number of classes", classes if run.task == "images" else None)
    )
    return Splits(
        MapStyle(Table(train, numbers[0], config, limit), tokens),
        MapStyle(Table(held_out, numbers[1], config, limit), tokens),
        digest_of(str(train._fingerprint), str(held_out._fingerprint), *numbers),
        {},
        num_classes=classes,
        unit="token",
    )


def split(found: Any, key: str, name: str) -> Any:
    if name not in found:
        raise UserError(f"{key} = {name!r}: the folder holds the splits {sorted(found)}")
    return found[name]
