"""Which samples a step sees: pure arithmetic over one permutation per epoch, the same for every world size.

Position p counts samples since step 0. Sample p is element `p mod n` of the permutation of epoch `p div n`. A global
batch is a range of positions and may straddle two epochs; ranks take slices of it. So a run that goes on with another
number of ranks skips and repeats nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainpkg.runtime.seeding import mix


class Order:
    """The endless order of `num_samples` samples for one seed."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples = num_samples
        self._seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def indices(self, position: int, count: int) -> Tensor:
        """Samples at positions [position, position + count), int64 [count]."""
        parts = []
        while count > 0:
            epoch, offset = divmod(position, self.num_samples)
            part = self._of_epoch(epoch)[offset : offset + count]
            parts.append(part)
            position, count = position + len(part), count - len(part)
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def _of_epoch(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mix("order", self._seed, epoch))
            self._permutation = torch.randperm(self.num_samples, generator=generator)
            self._epoch = epoch
        return self._permutation


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
