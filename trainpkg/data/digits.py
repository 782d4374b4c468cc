"""The 1,797 handwritten digits (8 x 8 pixels, 17 grey levels) that scikit-learn carries, from the UCI repository.

The file is read directly: importing scikit-learn takes a second per rank.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainpkg.config import DigitsData
from trainpkg.data import Splits, digest_of, to_device
from trainpkg.errors import UserError
from trainpkg.runtime.seeding import mix

BACKGROUND = -1.0


class Images:
    """Images [N, 1, 8, 8] float32 in [-1, 1] and labels [N] int64. Seeds move an image by at most `shift` pixels."""

    tokens_per_sample: int | None = None

    def __init__(self, images: Tensor, labels: Tensor, shift: int = 0) -> None:
        self.images, self.labels, self.shift = images, labels, shift
        self.num_samples = len(labels)
        self.draws = shift > 0

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        places = to_device(indices, self.images.device)
        images = self.images[places]
        if self.draws and seeds is not None:
            images = shifted(images, self.shift, seeds)
        return images, self.labels[places]


def shifted(images: Tensor, most: int, seeds: Tensor) -> Tensor:
    """Each image [N, 1, H, W] moved by -most..most pixels down and right, as its seed says; background comes after."""
    choices, (height, width) = 2 * most + 1, images.shape[2:]
    wide = width + 2 * most
    corners = to_device(seeds % choices * wide + seeds // choices % choices, images.device)
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    places = corners[:, None] + (rows[:, None] * wide + columns).flatten()
    padded = F.pad(images, (most, most, most, most), value=BACKGROUND)
    return padded.flatten(1).gather(1, places).view_as(images)


def load(config: DigitsData, device: torch.device) -> Splits:
    """A split that depends on nothing but `test_fraction`; UserError without scikit-learn's data file."""
    table = torch.from_numpy(np.loadtxt(data_file(), delimiter=",", dtype=np.float32))
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8) / 8 - 1, table[:, -1].long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(mix("digits split")))
    num_test = round(config.test_fraction * len(labels))
    if not 0 < num_test < len(labels):
        raise UserError(f"data.test_fraction = {config.test_fraction} leaves one part of {len(labels)} images empty")
    test, train = order[:num_test], order[num_test:]
    return Splits(
        train=Images(images[train].to(device), labels[train].to(device), config.shift),
        validation=Images(images[test].to(device), labels[test].to(device)),
        digest=digest_of(images, labels, order),
        facts={},
        num_classes=10,
    )


def data_file() -> Path:
    """Path of digits.csv.gz inside the installed scikit-learn."""
    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.exists():
            return path
    raise UserError("data.name = 'digits' needs scikit-learn with its data files: pip install scikit-learn")
