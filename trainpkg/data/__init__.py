"""The built-in data sets, as tensors in memory: they are small, and indexing beats a loader with workers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainpkg.config import DigitsData, Model, PythonTextData, Run


class Dataset(Protocol):
    """Samples by index."""

    num_samples: int
    tokens_per_sample: int | None

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of the samples at int64 `indices` [N], on the data set's device."""
        ...


@dataclass(frozen=True)
class Splits:
    """Training and held-out samples. `digest` is equal where the data are; `facts` are numbers about the data set."""

    train: Dataset
    validation: Dataset
    digest: str
    facts: dict[str, float]


def build(run: Run, device: torch.device) -> Splits:
    """The data that `data.name` asks for, on `device`."""
    from trainpkg.data import digits, python_text

    match run.data:
        case DigitsData():
            return digits.load(run.data, device)
        case PythonTextData():
            return python_text.load(run.data, context_of(run.model), device)


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
