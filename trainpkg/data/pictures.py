"""Encoded images as tensors: scaled, cut, altered in training. Decoding is Pillow's, on the worker that needs it."""

from __future__ import annotations

import io
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainpkg import named
from trainpkg.config import Pixels
from trainpkg.data import require
from trainpkg.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SMALLEST_PART, MOST_OBLONG = 0.35, 4 / 3  # of a random crop: its share of the area, its longer side over the shorter


class Pictures:
    """What the keys of `data` say of images. `alters`: whether training images are changed at random."""

    def __init__(self, config: Pixels) -> None:
        import PIL.Image  # an own data set does without

        self._image: Any = PIL.Image
        self._config = config
        self._transform = None
        if config.transform is not None:
            if config.transform.startswith("torchvision."):
                require("torchvision", f"data.transform = {config.transform!r}", "torchvision")
            maker = named.load("data.transform", config.transform)
            self._transform = named.call("data.transform", config.transform, maker, config.transform_kwargs)
            if not callable(self._transform):
                made = type(self._transform).__name__
                raise UserError(
                    f"data.transform = {config.transform!r} made {made}, which cannot be called with an image"
                )
        self.alters = self._transform is not None or config.augment != "none"

    def tensor(self, source: Path | bytes | Any, name: str, training: bool) -> Tensor:
        """float32 [channels, side, side] in [-1, 1] of a file, its content, or a PIL image.

        In training altered by python's generator. UserError, with `name`, for what is no image.
        """
        image = self._opened(source, name)
        if training and self._transform is not None:
            image = self._transform(image)
            if not isinstance(image, self._image.Image):
                raise UserError(
                    f"data.transform = {self._config.transform!r} made {type(image).__name__} of an image: a transform "
                    "here is from PIL image to PIL image"
                )
        crops = training and self._config.augment != "none"
        box = random_part(*image.size) if crops else centre(*image.size)
        side = self._config.side
        image = image.resize((side, side), self._image.Resampling.BILINEAR, box=box)
        if training and self._config.augment == "crop_flip" and random.random() < 0.5:
            image = image.transpose(self._image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32)).view(side, side, self._config.channels)
        return pixels.permute(2, 0, 1).contiguous() / 127.5 - 1

    def _opened(self, source: Path | bytes | Any, name: str) -> Any:
        mode = "RGB" if self._config.channels == 3 else "L"
        try:
            if isinstance(source, self._image.Image):
                return source.convert(mode)
            with self._image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                return image.convert(mode)
        except (OSError, ValueError, SyntaxError) as error:  # Pillow raises all three for damaged files
            raise UserError(f"{name} cannot be read as an image: {error}") from error


def centre(width: int, height: int) -> tuple[float, float, float, float]:
    """The largest square in the middle."""
    side = min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def random_part(width: int, height: int) -> tuple[float, float, float, float]:
    """A part of random size, shape and place, as in the training of Inception nets."""
    area = width * height * random.uniform(SMALLEST_PART, 1)
    ratio = math.exp(random.uniform(-math.log(MOST_OBLONG), math.log(MOST_OBLONG)))
    part_width, part_height = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, upper = random.uniform(0, width - part_width), random.uniform(0, height - part_height)
    return left, upper, left + part_width, upper + part_height
