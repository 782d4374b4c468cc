"""The source text of Python's standard library on this machine, as bytes; no download.

Files are ordered and split by a hash of their path within the library: the split is deterministic, and no file is in
both parts.
"""

from __future__ import annotations

import hashlib
import math
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainpkg.config import PythonTextData
from trainpkg.data import Splits, digest_of, to_device
from trainpkg.errors import UserError

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "turtledemo"}
MAX_FILE_BYTES = 32_768  # so that no single file (generated tables, the topics of pydoc) dominates a part
IGNORED = -100  # a target that counts nowhere


class Windows:
    """Consecutive windows of text: inputs and targets [N, context], int64, targets one byte ahead.

    `partial` keeps the last, shorter window, its missing targets marked IGNORED, so that every byte but the first is a
    target once.
    """

    draws = False

    def __init__(self, text: Tensor, context: int, partial: bool) -> None:
        num_targets = len(text) - 1
        self.num_samples = -(-num_targets // context) if partial else num_targets // context
        self.tokens_per_sample: int | None = context
        missing = max(self.num_samples * context - num_targets, 0)
        self._text = torch.cat([text, text.new_zeros(missing)])
        self._num_targets = num_targets
        self._offsets = torch.arange(context, device=text.device)

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        context = len(self._offsets)
        places = to_device(indices, self._text.device)[:, None] * context + self._offsets
        inputs, targets = self._text[places].long(), self._text[places + 1].long()
        return inputs, targets.masked_fill(places >= self._num_targets, IGNORED)


def load(config: PythonTextData, context: int, device: torch.device) -> Splits:
    """UserError where a part is too short for one window."""
    train, validation = read_texts(Path(sysconfig.get_path("stdlib")), config)
    for key, text in (("data.max_bytes", train), ("data.validation_fraction", validation)):
        if len(text) <= context:
            raise UserError(
                f"{key} leaves {len(text)} bytes in one part, too few for samples of {context} (model.context); "
                f"raise data.max_bytes = {config.max_bytes} or data.validation_fraction = {config.validation_fraction}"
            )
    return Splits(
        train=Windows(train.to(device), context, partial=False),
        validation=Windows(validation.to(device), context, partial=True),
        digest=digest_of(train, validation),
        facts={"unigram_nats_per_byte": unigram_nats_per_byte(train, validation)},
    )


def read_texts(root: Path, config: PythonTextData) -> tuple[Tensor, Tensor]:
    """(training, validation) text of the files under `root`, uint8 [bytes], in the shares that the config asks for.

    A file's part depends on its name alone; the shares only say how much of each part's text is used.
    """
    left = {True: round(config.max_bytes * config.validation_fraction)}
    left[False] = config.max_bytes - left[True]
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for digest, path in sorted((hashlib.sha256(name.encode()).digest(), root / name) for name in source_files(root)):
        # Ordered by the first bytes of the hash, split by others, so that both parts are drawn from all of the library.
        held_out = int.from_bytes(digest[8:16], "big") < config.validation_fraction * 2**64
        if left[held_out] > 0:
            text = path.read_bytes()[: min(left[held_out], MAX_FILE_BYTES)]
            left[held_out] -= len(text)
            parts[held_out].append(text)
        elif not any(amount > 0 for amount in left.values()):
            break
    train, validation = (np.frombuffer(b"".join(parts[held_out]), np.uint8).copy() for held_out in (False, True))
    return torch.from_numpy(train), torch.from_numpy(validation)


def source_files(root: Path) -> list[str]:
    """Names of all *.py files relative to `root`, sorted, without tests and installed packages."""
    names = (path.relative_to(root) for path in root.rglob("*.py"))
    return sorted(name.as_posix() for name in names if not SKIPPED & set(name.parts))


def unigram_nats_per_byte(train: Tensor, validation: Tensor) -> float:
    """Cross-entropy of the validation targets under the training text's byte frequencies (one added to each count)."""
    counts = torch.bincount(train.long(), minlength=256).double() + 1
    targets = torch.bincount(validation[1:].long(), minlength=256).double()
    nats = -(targets * (counts / counts.sum()).log()).sum() / targets.sum()
    assert math.isfinite(nats.item())
    return nats.item()
