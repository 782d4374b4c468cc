"""Data of the user's own: a class or function that gives (training, held-out) samples, seen as the trainer sees data.

Three kinds of samples do: map-style (`len(data)`, `data[i]`), iterable (`iter(data)`, begun anew for each epoch), and
batches by index, as `data.Dataset` says. What they draw at random is the same on any number of ranks and workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, default_collate

from trainpkg import named
from trainpkg.config import OwnData
from trainpkg.data import Dataset, Splits, digest_of
from trainpkg.data.samples import MapStyle
from trainpkg.data.stream import Stream
from trainpkg.errors import UserError
from trainpkg.runtime.seeding import mix

SHAPE = "a pair (training, held-out) of data sets: map-style, iterable, or with num_samples and batch"


def load(config: OwnData, seed: int) -> Splits:
    """UserError where the pair, or what is in it, is not as the contract says."""
    name = config.name
    made = named.call("data", name, named.load("data.name", name), config.kwargs)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise UserError(f"data.name = {name!r}: it gave {type(made).__name__}, wanted is {SHAPE}")
    train = seen(name, "training", made[0], seed, config.context, repeat=True)
    validation = seen(name, "held-out", made[1], seed, config.context, repeat=False)
    num_classes = getattr(made[0], "num_classes", None)
    digest = digest_of(*(_digest(source, one) for source, one in zip(made, (train, validation), strict=True)))
    return Splits(train, validation, digest, {}, num_classes=num_classes, streamed=isinstance(train, Stream))


def seen(name: str, what: str, source: Any, seed: int, tokens: int | None, repeat: bool) -> Dataset:
    """One of the two, as a `data.Dataset`."""
    place = f"data.name = {name!r}: the {what} samples ({type(source).__name__})"
    if hasattr(source, "batch") and hasattr(source, "num_samples"):
        kept: Dataset = source
        for attribute, default in (("draws", False), ("tokens_per_sample", tokens)):
            if not hasattr(kept, attribute):
                setattr(kept, attribute, default)
        return kept
    collate = getattr(source, "collate", default_collate)
    if isinstance(source, IterableDataset) or (hasattr(source, "__iter__") and not hasattr(source, "__getitem__")):
        return Stream(place, source, mix("stream", seed), tokens, collate, repeat)
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise UserError(f"{place} have neither __len__ and __getitem__ nor __iter__; wanted is {SHAPE}")
    if not len(source):
        raise UserError(f"{place} are none")
    return MapStyle(source, tokens, collate)


def _digest(source: Any, one: Dataset) -> str:
    """What tells these samples from others: the data set's own word, or its length, first and last sample."""
    given = getattr(source, "digest", None)
    if given is not None:
        return str(given)
    ends = [0] if isinstance(one, Stream) else [0, one.num_samples - 1]
    leaves: Iterable[Any] = tree_leaves(one.batch(torch.tensor(ends)))
    parts = [leaf if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
    return digest_of(str(one.num_samples), *parts)
