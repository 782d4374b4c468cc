"""Data of the user's own: a class or function that gives (training, held-out) samples, seen as the trainer sees data.

Three kinds of samples do: map-style (`len(data)`, `data[i]`), iterable (`iter(data)`, begun anew for each epoch), and
batches by index, as `data.Dataset` says. What they draw at random is the same on any number of ranks and workers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, default_collate

from trainpkg import named
from trainpkg.config import OwnData
from trainpkg.data import AbsentError, Dataset, Splits, digest_of
from trainpkg.data.loading import answered
from trainpkg.data.samples import MapStyle
from trainpkg.data.stream import Stream
from trainpkg.errors import UserError
from trainpkg.runtime.seeding import mix

SHAPE = "a pair (training, held-out) of data sets: map-style, iterable, or with num_samples and batch"


def load(config: OwnData, seed: int, workers: int = 0) -> Splits:
    """UserError where the pair, or what is in it, is not as the contract says; AbsentError where files are not there.

    Where there are `workers`, one of them looks at the samples.
    """
    name = config.name
    made = named.call("data", name, named.load("data.name", name), config.kwargs)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise UserError(f"data.name = {name!r}: it gave {type(made).__name__}, wanted is {SHAPE}")
    train = seen(name, "training", made[0], seed, config.context, repeat=True)
    validation = seen(name, "held-out", made[1], seed, config.context, repeat=False)
    num_classes = getattr(made[0], "num_classes", None)
    digests = []
    for what, source, one in zip(("training", "held-out"), made, (train, validation), strict=True):
        place = _place(name, what, source)
        num_samples, digest, wrong, absent = answered(functools.partial(_facts, place, source, one), workers)
        if wrong:
            raise AbsentError(wrong) if absent else UserError(wrong)
        if isinstance(one, Stream):
            one.num_samples = num_samples
        digests.append(digest)
    return Splits(
        train, validation, digest_of(*digests), {}, num_classes=num_classes, streamed=isinstance(train, Stream)
    )


def seen(name: str, what: str, source: Any, seed: int, tokens: int | None, repeat: bool) -> Dataset:
    """One of the two, as a `data.Dataset`."""
    place = _place(name, what, source)
    if hasattr(source, "batch") and hasattr(source, "num_samples"):
        kept: Dataset = source
        if kept.num_samples < 1:
            raise UserError(f"{place} are none: num_samples = {kept.num_samples}")
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


def _place(name: str, what: str, source: Any) -> str:
    return f"data.name = {name!r}: the {what} samples ({type(source).__name__})"


def _facts(place: str, source: Any, one: Dataset) -> tuple[int, str, str, bool]:
    """(number of samples, digest, or what is wrong, whether files are not there), as a worker can tell it."""
    try:
        if isinstance(one, Stream):
            one.num_samples = one.counted()
        return one.num_samples, _digest(source, one), "", False
    except UserError as error:
        return 0, "", str(error), isinstance(error.__cause__, OSError)
    except Exception as error:  # noqa: BLE001  the user's own code
        return 0, "", f"{place} raised {named.told(error)}", isinstance(error, OSError)


def _digest(source: Any, one: Dataset) -> str:
    """What tells these samples from others: the data set's own word, or its length, first and last sample."""
    given = getattr(source, "digest", None)
    if given is not None:
        return str(given)
    ends = [0] if isinstance(one, Stream) else [0, one.num_samples - 1]
    leaves: Iterable[Any] = tree_leaves(one.batch(torch.tensor(ends)))
    parts = [leaf if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
    return digest_of(str(one.num_samples), *parts)
