"""A rank's micro-batches, step by step: those of the next step are on their way while the present one is computed.

The position counts all ranks' samples since step 0, and all else follows from it (`order`), so that there is nothing to
save. Who prepares batches, and where, is `loading`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from trainpkg.config import Train
from trainpkg.data import Batch, Splits
from trainpkg.data.loading import Request, loaded
from trainpkg.data.order import InOrder, Order, micro_batch_sizes, slice_of_rank


class Feed:
    """Of one of `world_size` ranks that share each global batch; `rank` is its place among those."""

    def __init__(
        self, splits: Splits, seed: int, train: Train, device: torch.device, rank: int, world_size: int
    ) -> None:
        self._splits, self._device = splits, device
        self._order = InOrder(seed) if splits.streamed else Order(splits.train.num_samples, seed)
        self.global_batch, self._accumulation = train.global_batch, train.accumulation
        self._rank, self._world_size = rank, world_size
        self._batches: Iterator[Batch] = iter(())
        self._next: int | None = None  # position that the batches go on with

    def step(self, position: int) -> Iterator[tuple[bool, int, Batch]]:
        """(is the last, number of samples, batch) of the step whose global batch begins at `position`.

        Batches are on their way from the first call on; one for another position than the next starts anew.
        """
        if position != self._next:
            self.close()
            steps = itertools.count(position, self.global_batch)
            requests = itertools.chain.from_iterable(map(self._requests, steps))
            workers = self._splits.workers
            self._batches = loaded(self._splits.train, requests, self._device, workers, ahead=self._accumulation)
        self._next = position + self.global_batch
        sizes = self._sizes(position)
        for i, size in enumerate(sizes, 1):
            yield i == len(sizes), size, next(self._batches)

    def first(self) -> Batch:
        """The run's first micro-batch of this rank, none of which is larger; by a worker, if there are any.

        A file that the data set opened here would be shared by all workers that come later, with its place.
        """
        one = itertools.islice(self._requests(0), 1)
        return next(loaded(self._splits.train, one, self._device, min(self._splits.workers, 1)))

    def close(self) -> None:
        """End the workers; a further step would start others."""
        self._batches, self._next = iter(()), None

    def _sizes(self, position: int) -> list[int]:
        _, share = slice_of_rank(position, self.global_batch, self._rank, self._world_size)
        return micro_batch_sizes(share, self._accumulation)

    def _requests(self, position: int) -> Iterator[Request]:
        """The micro-batches of the step at `position`, as their samples."""
        first, _ = slice_of_rank(position, self.global_batch, self._rank, self._world_size)
        for size in self._sizes(position):
            seeds = self._order.seeds(first, size) if self._splits.train.draws else None
            yield self._order.indices(first, size), seeds
            first += size
