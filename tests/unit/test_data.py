"""The built-in data: deterministic, disjoint, and every sample exactly once per epoch on any number of ranks."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainpkg.config import DigitsData, PythonTextData
from trainpkg.data import digits, python_text
from trainpkg.data.order import Order, evaluation_passes, micro_batch_sizes, slice_of_rank
from trainpkg.errors import UserError

CPU = torch.device("cpu")
TEXT = PythonTextData(name="python_text", max_bytes=100_000)


def test_digits_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    splits = digits.load(DigitsData(name="digits"), CPU)
    parts = [part.batch(torch.arange(part.num_samples)) for part in (splits.train, splits.validation)]
    assert [len(part[1]) for part in parts] == [1438, 359]
    ours = {(tuple(((x + 1) * 8).flatten().tolist()), int(y)) for xs, ys in parts for x, y in zip(xs, ys, strict=True)}
    theirs = {(tuple(x), int(y)) for x, y in zip(images.tolist(), labels, strict=True)}
    assert ours == theirs, "nothing is lost, nothing is in both parts"


def test_digits_split_does_not_depend_on_torchs_generator() -> None:
    digests = set()
    for seed in range(3):
        torch.manual_seed(seed)
        digests.add(digits.load(DigitsData(name="digits"), CPU).digest)
    assert len(digests) == 1


def test_digits_of_an_empty_part_are_refused() -> None:
    with pytest.raises(UserError, match=r"data.test_fraction = 0.0001 leaves"):
        digits.load(DigitsData(name="digits", test_fraction=0.0001), CPU)


def test_text_split_is_deterministic_and_disjoint() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    train, validation = python_text.read_texts(root, TEXT)
    assert (len(train), len(validation)) == (95_000, 5_000)
    again = python_text.read_texts(root, TEXT)
    assert torch.equal(train, again[0]) and torch.equal(validation, again[1])
    names = python_text.source_files(root)
    assert names == sorted(set(names)) and len(names) > 300
    assert not [name for name in names if "site-packages" in name or ("/test" in name and "/tests/" in name)]


def test_text_of_a_file_is_in_one_part_whatever_the_size(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"m{i}.py").write_text(f"<{i}>" * 50)

    def found(text: torch.Tensor) -> set[int]:
        content = bytes(text.tolist()).decode()
        return {i for i in range(200) if f"<{i}>" * 50 in content}

    seen_train: set[int] = set()
    seen_validation: set[int] = set()
    for size in (10_000, 20_000, 1_000_000):
        config = PythonTextData(name="python_text", max_bytes=size, validation_fraction=0.3)
        train, validation = (found(text) for text in python_text.read_texts(tmp_path, config))
        seen_train |= train
        seen_validation |= validation
    assert not seen_train & seen_validation
    assert seen_train | seen_validation == set(range(200))


def test_windows_predict_every_byte_once() -> None:
    text = torch.arange(1, 24, dtype=torch.uint8)
    windows = python_text.Windows(text, 5, partial=True)
    inputs, targets = windows.batch(torch.arange(windows.num_samples))
    assert inputs.shape == targets.shape == (5, 5)
    kept = targets[targets != python_text.IGNORED]
    assert kept.tolist() == list(range(2, 24))
    assert ((targets == inputs + 1) | (targets == python_text.IGNORED)).all()
    whole = python_text.Windows(text, 5, partial=False)
    assert whole.num_samples == 4 and (whole.batch(torch.arange(4))[1] != python_text.IGNORED).all()


def test_unigram_is_the_entropy_where_texts_are_equal() -> None:
    text = torch.tensor([0, 1] * 50_000, dtype=torch.uint8)
    assert python_text.unigram_nats_per_byte(text, text) == pytest.approx(0.6931, abs=5e-3)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
@pytest.mark.failure("F102")
def test_ranks_together_see_the_global_order(world_size: int) -> None:
    order, batch = Order(25, seed=3), 12
    whole = torch.cat([order.indices(step * batch, batch) for step in range(25)])
    parts = []
    for step in range(25):
        for rank in range(world_size):
            first, count = slice_of_rank(step * batch, batch, rank, world_size)
            parts.append(order.indices(first, count))
    assert torch.equal(torch.cat(parts), whole)
    for epoch in range(12):
        assert sorted(whole[epoch * 25 : (epoch + 1) * 25].tolist()) == list(range(25))
    assert not torch.equal(whole[:25], whole[25:50]), "another order in each epoch"
    assert not torch.equal(Order(25, seed=4).indices(0, 25), whole[:25])


@given(st.integers(0, 10**12), st.integers(1, 10**7), st.integers(1, 600))
def test_shares_cover_the_global_batch_in_order(position: int, global_batch: int, world_size: int) -> None:
    shares = [slice_of_rank(position, global_batch, rank, world_size) for rank in range(world_size)]
    ends = [first + count for first, count in shares]
    assert [first for first, _ in shares] == [position, *ends[:-1]]
    assert ends[-1] == position + global_batch
    counts = {count for _, count in shares}
    assert max(counts) - min(counts) <= 1, "a rank of another size would make all others wait"


@given(st.integers(1, 10**6), st.integers(1, 300))
def test_micro_batches_cover_a_share_short_ones_last(share: int, count: int) -> None:
    sizes = micro_batch_sizes(share, count)
    assert len(sizes) == count and sum(sizes) == share
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def test_order_from_the_middle_is_the_order() -> None:
    whole = Order(10, 0).indices(0, 100)
    for position in (0, 9, 10, 37):
        assert torch.equal(Order(10, 0).indices(position, 25), whole[position : position + 25])


@pytest.mark.parametrize("num_samples", [1, 7, 48, 49, 359])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_evaluation_covers_each_sample_once_with_equal_passes(num_samples: int, world_size: int) -> None:
    ranks = [evaluation_passes(num_samples, 8, rank, world_size) for rank in range(world_size)]
    assert len({len(passes) for passes in ranks}) == 1
    seen = [sample for passes in ranks for first, real in passes for sample in range(first, first + real)]
    assert sorted(seen) == list(range(num_samples))


@pytest.mark.failure("F111")
def test_no_rank_prepares_a_cache_that_others_must_wait_for() -> None:
    """The kernel of "main process first": nothing is written or fetched, on a shared file system or not."""
    code = """
import os, sys
import torch
from trainpkg.config import DigitsData, PythonTextData
from trainpkg.data import digits, python_text
touched = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        touched.append(arguments[0])
    elif event in ("os.mkdir", "os.rename", "socket.connect"):
        touched.append((event, arguments))
sys.dont_write_bytecode = True
sys.addaudithook(hook)
digits.load(DigitsData(name="digits"), torch.device("cpu"))
python_text.load(PythonTextData(name="python_text", max_bytes=100_000), 16, torch.device("cpu"))
print(touched)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
