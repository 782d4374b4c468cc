"""Images in a folder per class: PATH/CLASS/**/*.png. Classes are numbered in the order of their names."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from trainpkg.config import ImageFolderData, Run
from trainpkg.data import AbsentError, Splits, digest_of
from trainpkg.data.pictures import SUFFIXES, Pictures
from trainpkg.data.samples import MapStyle, held_out_by_name
from trainpkg.errors import UserError

Labelled = list[tuple[str, int]]  # path below the folder, class


class Folder:
    """(image, class) of each file."""

    def __init__(self, root: Path, files: Labelled, pictures: Pictures, training: bool) -> None:
        self._root, self._files, self._pictures, self._training = root, files, pictures, training
        self.draws = training and pictures.alters

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        name, label = self._files[index]
        path = self._root / name
        return self._pictures.tensor(path, str(path), self._training), label


def load(run: Run, device: torch.device) -> Splits:
    """UserError for a folder that is not as it should be."""
    config = run.data
    assert isinstance(config, ImageFolderData)
    pictures, root = Pictures(config), Path(config.path).expanduser()
    classes, files = listed("data.path", root)
    if config.validation is None:
        chosen = held_out_by_name((name for name, _ in files), config.validation_fraction)
        train = [file for file, out in zip(files, chosen, strict=True) if not out]
        held_out, held_root = [file for file, out in zip(files, chosen, strict=True) if out], root
        if not train or not held_out:
            raise UserError(
                f"data.validation_fraction = {config.validation_fraction} leaves {len(train)} training and "
                f"{len(held_out)} held-out images of {len(files)} in {root}"
            )
    else:
        held_root = Path(config.validation).expanduser()
        held_classes, held_out = listed("data.validation", held_root)
        train = files
        if held_classes != classes:
            odd = sorted(set(classes) ^ set(held_classes))
            raise UserError(f"data.validation = {config.validation!r}: classes differ from those of {root}: {odd[:8]}")
    return Splits(
        MapStyle(Folder(root, train, pictures, training=True)),
        MapStyle(Folder(held_root, held_out, pictures, training=False)),
        digest_of(*(f"{name}\0" for part in (train, held_out) for name, _ in part)),
        {},
        num_classes=len(classes),
    )


def listed(key: str, root: Path) -> tuple[list[str], Labelled]:
    """(classes, files with the number of their class), each in the order of names. Reads names alone."""
    if not root.is_dir():
        raise AbsentError(f"{key}: there is no folder {root.absolute()}")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    files = []
    for number, name in enumerate(classes):
        found = [
            os.path.relpath(os.path.join(folder, file), root)  # noqa: PTH118  a million of them
            for folder, _, names in os.walk(root / name, followlinks=True)
            for file in names
            if file.lower().endswith(SUFFIXES)
        ]
        if not found:
            raise UserError(f"{key}: {root / name} holds no image ({', '.join(SUFFIXES)}); each folder is a class")
        files += [(file, number) for file in sorted(found)]
    if not classes:
        raise UserError(f"{key}: {root.absolute()} holds no folder; each class has one")
    return classes, files
