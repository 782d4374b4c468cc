"""What reaches a rank's loop: the same samples, altered in the same way, whoever prepares them, wherever it begins."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from trainpkg.config import DigitsData, Train
from trainpkg.data import Splits, digits
from trainpkg.data.feed import Feed
from trainpkg.data.order import Order

CPU = torch.device("cpu")


class Echo:
    """Each sample is its own index and its seed."""

    tokens_per_sample = None

    def __init__(self, num_samples: int, draws: bool) -> None:
        self.num_samples, self.draws = num_samples, draws

    def batch(self, indices: Tensor, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return indices.clone(), torch.zeros_like(indices) if seeds is None else seeds.clone()


def echo(num_samples: int = 25, workers: int = 0, draws: bool = True) -> Splits:
    dataset = Echo(num_samples, draws)
    return Splits(dataset, dataset, "", {}, workers)


def feed(splits: Splits, batch: int, accumulation: int = 1, rank: int = 0, world_size: int = 1, seed: int = 3) -> Feed:
    return Feed(splits, seed, Train(max_steps=1, global_batch=batch, accumulation=accumulation), CPU, rank, world_size)


def taken(one: Feed, position: int, num_steps: int) -> list[tuple[bool, int, Any]]:
    """What the loop would see in so many steps, which must be of its own size."""
    found = []
    for step in range(num_steps):
        for last, num_samples, batch in one.step(position + step * one.global_batch):
            assert all(len(part) == num_samples for part in batch)
            found.append((last, num_samples, batch))
    one.close()
    return found


def joined(found: list[tuple[bool, int, Any]]) -> list[Tensor]:
    """All inputs and all targets, in order."""
    return [torch.cat(parts) for parts in zip(*(batch for _, _, batch in found), strict=True)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.failure("F102")
def test_ranks_see_each_sample_once_though_they_divide_nothing(world_size: int, accumulation: int) -> None:
    batch, num_steps = 13, 6
    ranks = [taken(feed(echo(), batch, accumulation, rank, world_size), 0, num_steps) for rank in range(world_size)]
    for step in range(num_steps):
        part = slice(step * accumulation, (step + 1) * accumulation)
        seen = joined([micro for rank in ranks for micro in rank[part]])
        order = Order(25, seed=3)
        assert torch.equal(seen[0], order.indices(step * batch, batch))
        assert torch.equal(seen[1], order.seeds(step * batch, batch))
    for rank in ranks:
        assert [last for last, _, _ in rank] == [i == accumulation - 1 for i in range(accumulation)] * num_steps
        sizes = [size for _, size, _ in rank]
        assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than this machine has cores
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_resume_and_accumulation_change_nothing(workers: int) -> None:
    batch = 10
    whole = joined(taken(feed(echo(), batch), 0, 12))
    for first_step, accumulation in ((0, 1), (3, 4), (7, 3)):
        again = joined(taken(feed(echo(workers=workers), batch, accumulation), first_step * batch, 12 - first_step))
        for one, other in zip(again, whole, strict=True):
            assert torch.equal(one, other[first_step * batch :])


def test_a_step_from_elsewhere_starts_anew() -> None:
    one = feed(echo(workers=1), 10)
    for position in (0, 10, 70, 20):
        (_, _, (indices, _)), = one.step(position)  # fmt: skip
        assert torch.equal(indices, Order(25, 3).indices(position, 10))
    one.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_ranks_own_generator_is_left_alone(workers: int) -> None:
    """Or dropout would depend on who prepares the data."""
    torch.manual_seed(7)
    before = torch.get_rng_state()
    taken(feed(echo(workers=workers), 10), 0, 2)
    feed(echo(workers=workers), 10).first()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_batch_is_no_smaller_than_any() -> None:
    for world_size, rank in ((3, 0), (3, 2), (2, 1)):
        one = feed(echo(), 13, 2, rank, world_size)
        assert len(one.first()[0]) == max(size for _, size, _ in taken(one, 0, 1))


def test_the_seed_of_a_sample_depends_on_epoch_and_sample_alone() -> None:
    order = Order(25, seed=3)
    epochs = []
    for epoch in range(3):
        pairs = zip(order.indices(epoch * 25, 25).tolist(), order.seeds(epoch * 25, 25).tolist(), strict=True)
        epochs.append(dict(pairs))
    assert len(set(itertools.chain.from_iterable(one.values() for one in epochs))) == 75
    for position, count in ((0, 75), (20, 40), (49, 2)):
        pairs = zip(order.indices(position, count).tolist(), order.seeds(position, count).tolist(), strict=True)
        for p, (index, seed) in enumerate(pairs, position):
            assert epochs[p // 25][index] == seed
    assert Order(25, seed=4).seeds(0, 25).tolist() != order.seeds(0, 25).tolist()


def test_an_image_is_moved_as_its_seed_says_and_background_follows() -> None:
    images = torch.rand(200, 1, 8, 8)
    seeds = Order(200, 0).seeds(0, 200)
    moved = digits.shifted(images, 2, seeds)
    found = set()
    for image, result, seed in zip(images, moved, seeds.tolist(), strict=True):
        down, right = 2 - seed % 5, 2 - seed // 5 % 5
        expected = torch.full((8, 8), digits.BACKGROUND)
        for row, column in itertools.product(range(8), repeat=2):
            if 0 <= row - down < 8 and 0 <= column - right < 8:
                expected[row, column] = image[0, row - down, column - right]
        assert torch.equal(result[0], expected)
        found.add((down, right))
    assert found == set(itertools.product(range(-2, 3), repeat=2)), "all moves come, none is larger"


def test_digits_are_moved_in_training_alone() -> None:
    plain, moved = (digits.load(DigitsData(name="digits", shift=shift), CPU) for shift in (0, 1))
    everything = torch.arange(100)
    seeds = Order(100, 0).seeds(0, 100)
    assert torch.equal(plain.train.batch(everything, seeds)[0], plain.train.batch(everything)[0])
    assert torch.equal(moved.train.batch(everything)[0], plain.train.batch(everything)[0])
    assert not torch.equal(moved.train.batch(everything, seeds)[0], plain.train.batch(everything)[0])
    assert torch.equal(moved.validation.batch(everything, seeds)[0], plain.validation.batch(everything)[0])
    assert (plain.train.draws, moved.train.draws, moved.validation.draws) == (False, True, False)
    assert moved.digest == plain.digest


def test_moved_digits_are_the_same_from_workers_and_from_the_rank() -> None:
    splits = digits.load(DigitsData(name="digits", shift=2), CPU)
    one, other = (
        joined(taken(feed(Splits(splits.train, splits.validation, "", {}, workers), 700), 700, 4)) for workers in (0, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_process_that_still_has_workers_ends() -> None:
    code = """
import torch
from tests.unit.test_feed import Echo
from trainpkg.data.loading import loaded
batches = loaded(Echo(9, False), [(torch.arange(3), None)] * 9, torch.device("cpu"), 2)
print(len(next(batches)[0]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "3\n"
