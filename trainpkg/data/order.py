"""Which samples a step sees: pure arithmetic over one permutation per epoch, the same for every world size.

Position p counts samples since step 0. Sample p is element `p mod n` of the permutation of epoch `p div n`. A global
batch is a range of positions and may straddle two epochs; ranks take slices of it. So a run that goes on with another
number of ranks skips and repeats nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from trainpkg.runtime.seeding import mix


class Order:
    """The endless order of `num_samples` samples for one seed."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples = num_samples
        self._seed = seed
        self._permutation = functools.lru_cache(maxsize=2)(self._permute)  # two: a batch may straddle epochs
        self._seeds = functools.lru_cache(maxsize=2)(self._draw_seeds)

    def indices(self, position: int, count: int) -> Tensor:
        """Samples at positions [position, position + count), int64 [count]."""
        return _joined([self._permutation(epoch)[part] for epoch, part in self._parts(position, count)])

    def seeds(self, position: int, count: int) -> Tensor:
        """A number in [0, 2**63 - 1) for the sample at each of these positions, int64 [count].

        A function of seed, epoch and sample alone: whoever prepares the sample, whenever, draws the same from it.
        """
        parts = self._parts(position, count)
        return _joined([self._seeds(epoch)[self._permutation(epoch)[part]] for epoch, part in parts])

    def _parts(self, position: int, count: int) -> Iterator[tuple[int, slice]]:
        """(epoch, places within its permutation) of a range of positions."""
        end = position + count
        while position < end:
            epoch, offset = divmod(position, self.num_samples)
            length = min(end - position, self.num_samples - offset)
            yield epoch, slice(offset, offset + length)
            position += length

    def _permute(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(mix("order", self._seed, epoch))
        return torch.randperm(self.num_samples, generator=generator)

    def _draw_seeds(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(mix("samples", self._seed, epoch))
        return torch.randint(2**63 - 1, (self.num_samples,), generator=generator)


class InOrder:
    """The order of samples that come as they come: position p is sample p. They are counted on from epoch to epoch."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def indices(self, position: int, count: int) -> Tensor:
        return torch.arange(position, position + count)

    def seeds(self, position: int, count: int) -> Tensor:
        """As an `Order`'s: a function of seed and position alone."""
        return torch.tensor([mix("sample", self._seed, place) for place in range(position, position + count)])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def slice_of_rank(position: int, global_batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """(first position, count) of a rank's part of the global batch that starts at `position`.

    The parts of all ranks cover the batch without a gap, in rank order, and their sizes differ by one at most.
    """
    first, end = rank * global_batch // world_size, (rank + 1) * global_batch // world_size
    return position + first, end - first


def micro_batch_sizes(share: int, count: int) -> list[int]:
    """Sizes of the `count` consecutive micro-batches of a `share` of samples: equal but for one, short ones last."""
    size, num_longer = divmod(share, count)
    return [size + (i < num_longer) for i in range(count)]


def evaluation_passes(num_samples: int, batch: int, rank: int, world_size: int) -> list[tuple[int, int]]:
    """(first sample, number of real samples) of each forward pass of a rank.

    Every rank gets the same number of passes (FSDP gathers in each); passes beyond the end have 0 real samples.
    """
    num_passes = -(-num_samples // (batch * world_size))
    firsts = [(i * world_size + rank) * batch for i in range(num_passes)]
    return [(min(first, num_samples), max(0, min(batch, num_samples - first))) for first in firsts]
