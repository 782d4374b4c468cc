"""Samples that can only be iterated, by their position: an index is how many samples came before, over all epochs.

Every rank and worker reads the whole stream and keeps what it is asked for, so that no sample is lost or seen twice,
whatever their number, and a run goes on where it stood by passing over what it has had. What is costly belongs in the
data set's method `decode`, which is called for kept samples alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from trainpkg.errors import UserError
from trainpkg.named import told
from trainpkg.runtime.seeding import host_generators, host_generators_kept, mix, seed_host, set_host_generators

NOTHING = object()


class Stream:
    """`source` must iterate over the same samples whenever it is asked for the same epoch.

    Before each epoch its `set_epoch(epoch)` is called, if there is one, and the host's generators are seeded, which the
    stream then has for itself. `__len__`, if there is one, is the number of samples of an epoch; without it, held-out
    samples (`repeat` False) are counted once. `place` begins sentences on what is wrong.
    """

    draws = True

    def __init__(
        self,
        place: str,
        source: Any,
        seed: int,
        tokens: int | None,
        collate: Callable[[list[Any]], Any],
        repeat: bool,
    ) -> None:
        self._place, self._source, self._seed, self._collate, self._repeat = place, source, seed, collate, repeat
        self.tokens_per_sample = tokens
        self._epoch, self._next, self._begun = 0, 0, 0  # position of the next sample, of the epoch's first one
        self._items: Iterator[Any] | None = None
        self._made: Any = None  # of the sample before the next, which `decode` may have altered
        self._made_of: tuple[int, int] | None = None  # its position and seed
        self._generators: tuple[Any, ...] = ()
        if iter(source) is source:
            raise UserError(f"{place} can be iterated once only: give a class whose __iter__ begins anew")
        self.num_samples = self._length() if hasattr(source, "__len__") else 0

    def counted(self) -> int:
        """Samples of an epoch; 0: not known, and not wanted. Held-out samples without a length are gone through."""
        if self._repeat or self.num_samples:
            return self.num_samples
        with host_generators_kept():
            return self._count()

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> Any:
        """Ascending positions cost least: each one that is passed over is iterated, one that is behind begins anew."""
        places = indices.tolist()
        drawn = seeds.tolist() if seeds is not None else [mix("held out", place) for place in places]
        decode = getattr(self._source, "decode", None)
        samples = []
        with host_generators_kept():
            if self._generators:
                set_host_generators(self._generators)
            for place, seed in zip(places, drawn, strict=True):
                if self._made_of != (place, seed):  # padded evaluations ask for the last one again and again
                    sample = self._at(place)
                    if decode is not None:
                        with host_generators_kept():
                            seed_host(seed)
                            sample = decode(sample)
                    self._made, self._made_of = sample, (place, seed)
                samples.append(self._made)
            self._generators = host_generators()
        return self._collate(samples)

    def _at(self, position: int) -> Any:
        if self._items is None or position < self._next:
            self._begin(position // self.num_samples if self._repeat and self.num_samples else 0)
        elif self.num_samples and self._repeat and position // self.num_samples > self._epoch + 1:
            self._begin(position // self.num_samples)
        while True:
            sample = self._pull()
            self._next += 1
            if self._next > position:
                return sample

    def _begin(self, epoch: int) -> None:
        """The epoch's first sample is next; without a known length that is only possible for the first epoch."""
        self._begun = self._next = epoch * self.num_samples
        self._open(epoch)

    def _open(self, epoch: int) -> None:
        self._epoch = epoch
        seed_host(mix("epoch", self._seed, epoch))
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        self._items = iter(self._source)

    def _pull(self) -> Any:
        assert self._items is not None
        sample = next(self._items, NOTHING)
        if sample is not NOTHING:
            return sample
        count = self._next - self._begun
        if self.num_samples and count != self.num_samples:
            raise UserError(f"{self._place}: __len__ says {self.num_samples}, but epoch {self._epoch} gave {count}")
        if not count or not self._repeat:
            raise UserError(f"{self._place}: epoch {self._epoch} gave {count} samples, and another one is wanted")
        self._begun = self._next
        self._open(self._epoch + 1)
        return self._pull()

    def _length(self) -> int:
        try:
            return len(self._source)
        except TypeError as error:  # torch's IterableDataset, wrapped: not known after all
            raise UserError(f"{self._place}: __len__ is there, but {told(error)}; leave it out") from error

    def _count(self) -> int:
        self._open(0)
        assert self._items is not None
        count = sum(1 for _ in self._items)
        self._items = None
        if not count:
            raise UserError(f"{self._place} are none")
        return count
