"""The built-in data sets, as tensors in memory. Their order is `order`'s, who prepares them `loading`'s."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainpkg.config import DigitsData, Model, PythonTextData, Run


class Dataset(Protocol):
    """Samples by index. `draws`: whether they are altered at random, and so want a seed each."""

    num_samples: int
    tokens_per_sample: int | None
    draws: bool

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of the samples at int64 `indices` [N], on the data set's device.

        With int64 `seeds` [N] on the CPU each is altered as its own seed says, and nothing else does: no generator's
        state. Without, the samples are as they are.
        """
        ...


@dataclass(frozen=True)
class Splits:
    """Training and held-out samples. `digest` is equal where the data are; `facts` are numbers about the data set.

    `workers`: processes per rank that prepare batches; 0: the rank itself.
    """

    train: Dataset
    validation: Dataset
    digest: str
    facts: dict[str, float]
    workers: int = 0


def build(run: Run, device: torch.device) -> Splits:
    """The data that `data.name` asks for: on `device`, or where workers can reach them, who have no device."""
    from trainpkg.data import digits, python_text

    home = device if run.data.workers == 0 else torch.device("cpu")
    match run.data:
        case DigitsData():
            splits = digits.load(run.data, home)
        case PythonTextData():
            splits = python_text.load(run.data, context_of(run.model), home)
    return dataclasses.replace(splits, workers=run.data.workers)


def context_of(model: Model) -> int:
    """Tokens per sample that the model can see."""
    assert model.name == "gpt", "config refuses other models for text"
    return model.context


def to_device(indices: Tensor, device: torch.device) -> Tensor:
    """The indices on the data's device; a GPU copies them from pinned memory, so that the host runs ahead of it."""
    if device.type == "cuda" and indices.device.type == "cpu":
        return indices.pin_memory().to(device, non_blocking=True)
    return indices.to(device)


def digest_of(*tensors: Tensor) -> str:
    """16 hex digits over the values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
