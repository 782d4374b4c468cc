"""Memory-mapped token files: train.bin and validation.bin (or val.bin), numbers without a header.

`trainpkg tokenize` writes them, with meta.json beside them that says their type and vocabulary; nanoGPT's are read too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainpkg.config import GPTModel, Run, TokensData
from trainpkg.data import AbsentError, Splits, context_of, digest_of
from trainpkg.data.python_text import IGNORED
from trainpkg.errors import UserError

META = "meta.json"
Numbers = np.ndarray[Any, Any]


class Windows:
    """Consecutive windows: inputs and targets [N, context] int64, targets one ahead; see `python_text.Windows`."""

    draws = False

    def __init__(self, numbers: Numbers, context: int, partial: bool) -> None:
        self._numbers, self._context = numbers, context
        num_targets = len(numbers) - 1
        self.num_samples = -(-num_targets // context) if partial else num_targets // context
        self.tokens_per_sample: int | None = context

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        context = self._context
        rows = torch.full((len(indices), context + 1), IGNORED, dtype=torch.int64)
        for row, index in zip(rows, indices.tolist(), strict=True):
            window = self._numbers[index * context : (index + 1) * context + 1].astype(np.int64)
            row[: len(window)] = torch.from_numpy(window)
        inputs, targets = rows[:, :-1], rows[:, 1:]
        return inputs.clamp(min=0).contiguous(), targets.contiguous()


def load(run: Run, device: torch.device) -> Splits:
    """UserError for files that are missing, too short, or hold more tokens than the model has."""
    config = run.data
    assert isinstance(config, TokensData)
    folder, context = Path(config.path).expanduser(), context_of(run)
    meta = read_meta(folder)
    dtype = np.dtype(meta.get("dtype", config.dtype)).newbyteorder("<")
    train = mapped("data.path", folder / "train.bin", dtype, context)
    if config.validation is not None:
        held_out = mapped("data.validation", Path(config.validation).expanduser(), dtype, context)
    elif (own := [folder / name for name in ("validation.bin", "val.bin") if (folder / name).is_file()]) != []:
        held_out = mapped("data.path", own[0], dtype, context)
    else:  # the end of the text, in whole windows
        first = len(train) - max(round(len(train) * config.validation_fraction) // context, 1) * context - 1
        train, held_out = train[:first], train[first:]
        if len(train) <= context:
            raise UserError(
                f"data.path: {folder / 'train.bin'} is too short to hold anything out; give data.validation"
            )
    require_vocabulary(run, meta, folder, (train, held_out))
    facts = {"bytes_per_token": meta["bytes_per_token"]} if meta.get("bytes_per_token") else {}
    ends = [
        digest_of(torch.from_numpy(part[:: max(len(part) // 4096, 1)].astype(np.int64))) for part in (train, held_out)
    ]
    return Splits(
        Windows(train, context, partial=False),
        Windows(held_out, context, partial=True),
        digest_of(*ends, f"{len(train)} {len(held_out)}"),
        facts,
        unit="byte" if meta.get("tokenizer") == "bytes" else "token",
    )


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json, or nothing where there is none. UserError where it cannot be read."""
    path = folder / META
    try:
        meta: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"data.path: {path}: {error}; make the folder again with trainpkg tokenize") from error
    return meta


def mapped(key: str, path: Path, dtype: np.dtype[Any], context: int) -> Numbers:
    if not path.is_file():
        raise AbsentError(f"{key}: there is no {path.absolute()}; trainpkg tokenize makes such files")
    size = path.stat().st_size
    if size % dtype.itemsize or size // dtype.itemsize <= context:
        raise UserError(
            f"{key}: {path} has {size} bytes: no whole number of {dtype.name}, or not more than one sample's {context} "
            "tokens (model.context, data.context)"
        )
    return np.memmap(path, dtype, mode="r")


def require_vocabulary(run: Run, meta: dict[str, Any], folder: Path, parts: tuple[Numbers, ...]) -> None:
    """UserError where the model has other tokens than the files."""
    if not isinstance(run.model, GPTModel):
        return
    given, known = run.model.vocabulary, meta.get("vocabulary")
    if known is not None and known != given:
        raise UserError(
            f"model.vocabulary = {given}, but the tokens of {folder} are of a vocabulary of {known} ({folder / META}): "
            f"set model.vocabulary: {known}"
        )
    if known is None and (most := max(int(part[:1_000_000].max()) for part in parts)) >= given:
        raise UserError(f"model.vocabulary = {given}, but {folder} holds the token {most}: set it to more than that")
