"""The data sets: samples by index. Their order is `order`'s, who prepares them `loading`'s."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainpkg.config import DigitsData, GPTModel, OwnData, PythonTextData, Run, TokensData
from trainpkg.errors import UserError

Batch = Any  # of the built-in data (inputs, targets); of the user's own any nest of tensors
MOST_WORKERS = 8


class AbsentError(UserError):
    """Files are not there: perhaps not yet, or on other machines alone."""


class Dataset(Protocol):
    """Samples by index. `draws`: whether they are altered at random, and so want a seed each."""

    num_samples: int
    tokens_per_sample: int | None
    draws: bool

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> Batch:
        """(inputs, targets) of the samples at int64 `indices` [N], on the data set's device.

        With int64 `seeds` [N] on the CPU each is altered as its own seed says, and nothing else does: no generator's
        state. Without, the samples are as they are.
        """
        ...


@dataclass(frozen=True)
class Splits:
    """Training and held-out samples. `digest` is equal where the data are; `facts` are numbers about the data set.

    `workers`: processes per rank that prepare batches; 0: the rank itself. `num_classes`: of the targets, where they
    are classes. `unit`: what a token is. `streamed`: training samples come in an order of their own, and an index is a
    position in it, counted on from epoch to epoch; `num_samples` of an epoch may be 0 then, not known.
    """

    train: Dataset
    validation: Dataset
    digest: str
    facts: dict[str, float]
    workers: int = 0
    num_classes: int | None = None
    unit: str = "byte"
    streamed: bool = False


FROM_FILES = ("image_folder", "webdataset", "tokens", "table", "hf_dataset")  # each a module here


def build(run: Run, device: torch.device) -> Splits:
    """The data that `data.name` asks for: on `device`, or where workers can reach them, who have no device."""
    from trainpkg.data import digits, own, python_text

    config = run.data
    in_memory = isinstance(config, DigitsData | PythonTextData) or config.name == "table"
    workers = config.workers
    if workers is None:
        workers = 0 if in_memory else max(min(share_of_cpus(run, os.environ) - 1, MOST_WORKERS), 0)
    home = device if workers == 0 else torch.device("cpu")
    match config:
        case DigitsData():
            splits = digits.load(config, home)
        case PythonTextData():
            splits = python_text.load(config, context_of(run), home)
        case OwnData():
            splits = own.load(config, run.seed, workers)
        case _:
            load: Callable[[Run, torch.device], Splits] = importlib.import_module(f"trainpkg.data.{config.name}").load
            splits = load(run, home)
    return dataclasses.replace(splits, workers=workers)


def share_of_cpus(run: Run, env: Mapping[str, str]) -> int:
    """CPUs of a rank: what the launcher has told its libraries, unless the user has told them something else."""
    told = env.get("OMP_NUM_THREADS", "")
    if told.isdigit() and "OMP_NUM_THREADS" not in run.launch.env:
        return int(told)
    return len(os.sched_getaffinity(0)) // max(int(env.get("LOCAL_WORLD_SIZE") or 1), 1)


def context_of(run: Run) -> int:
    """Tokens per sample: what the data say, or else all that the model can see."""
    assert isinstance(run.data, PythonTextData | TokensData)
    if run.data.context is not None:
        return run.data.context
    assert isinstance(run.model, GPTModel), "config asks for data.context"
    return run.model.context


def require(module: str, key: str, extra: str) -> Any:
    """A module of an extra. UserError with the line that installs it."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # torchvision of another build than torch raises RuntimeError
        raise UserError(f"{key} needs {module} ({error}): pip install 'trainpkg[{extra}]'") from error


def to_device(indices: Tensor, device: torch.device) -> Tensor:
    """The indices on the data's device; a GPU copies them from pinned memory, so that the host runs ahead of it."""
    if device.type == "cuda" and indices.device.type == "cpu":
        return indices.pin_memory().to(device, non_blocking=True)
    return indices.to(device)


def digest_of(*parts: Tensor | str) -> str:
    """16 hex digits over the values."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else _bytes(part))
    return digest.hexdigest()[:16]


def _bytes(part: Tensor) -> bytes:
    """Of any type: numpy knows no bfloat16."""
    return part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
