"""Samples one by one, made into batches: what a data set draws at random follows from each sample's own seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from trainpkg.data import Batch
from trainpkg.errors import UserError
from trainpkg.runtime.seeding import host_generators_kept, mix, seed_host


class MapStyle:
    """`source[i]` for each index; what it draws from torch's, python's and numpy's generators follows from its seed.

    `draws = False` on the source: it draws nothing.
    """

    def __init__(
        self, source: Any, tokens: int | None = None, collate: Callable[[list[Any]], Batch] = default_collate
    ) -> None:
        self._source, self._collate = source, collate
        self.num_samples, self.tokens_per_sample = len(source), tokens
        self.draws = bool(getattr(source, "draws", True))

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> Batch:
        places = indices.tolist()
        drawn = seeds.tolist() if seeds is not None else [mix("held out", place) for place in places]
        samples = []
        with host_generators_kept():
            for place, seed in zip(places, drawn, strict=True):
                if self.draws:
                    seed_host(seed)
                samples.append(self._source[place])
        return self._collate(samples)


def held_out_by_name(names: Iterable[str], fraction: float) -> list[bool]:
    """Which samples are held out: by a hash of each name alone, so that further samples move none."""
    hashes = (hashlib.sha256(name.encode()).digest() for name in names)
    return [int.from_bytes(one[:8], "big") < fraction * 2**64 for one in hashes]


def held_out_by_number(num_samples: int, fraction: float) -> tuple[Tensor, Tensor]:
    """(training, held-out) numbers, ascending: for samples that have no names. At least one on each side of two."""
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(mix("held out")))
    count = min(max(round(fraction * num_samples), 1), max(num_samples - 1, 0))
    return order[count:].sort().values, order[:count].sort().values


def require_known(place: str, number: int, key: str, count: int | None) -> None:
    """UserError for a class or token that the model does not have: a GPU would end the job, and name neither."""
    if count is not None and not 0 <= number < count:
        raise UserError(f"{place} holds {number}, but {key} = {count}: there are 0 to {count - 1}")
