"""Samples of the user's own: files that they open, what is done to them, what goes wrong in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from trainpkg import contract, data
from trainpkg.config import OwnData, Run, Train
from trainpkg.data import Splits, digest_of, own
from trainpkg.data.feed import Feed
from trainpkg.data.loading import loaded
from trainpkg.errors import UserError

CPU = torch.device("cpu")
NUM_SAMPLES = 6000  # a file of several buffers


class Rows:
    """By index, from a file that the first sample opens: (number, whether its process opened the file)."""

    def __init__(self, path: str) -> None:
        self.path, self.file, self.opened_by = path, None, 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, bool]:
        if self.file is None:
            self.file, self.opened_by = open(self.path, "rb"), os.getpid()  # type: ignore[assignment]  # noqa: PTH123, SIM115
        self.file.seek(8 * index)  # type: ignore[attr-defined]
        return int(self.file.read(8)), self.opened_by == os.getpid()  # type: ignore[attr-defined]


class Lines(IterableDataset[tuple[int, bool]]):
    """The same, from the start to the end; without a length."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self) -> Iterator[tuple[int, bool]]:
        pid = os.getpid()
        with Path(self.path).open("rb") as file:
            while text := file.read(8):
                yield int(text), pid == os.getpid()


def rows(path: str) -> tuple[Rows, Rows]:
    return Rows(path), Rows(path)


def lines(path: str) -> tuple[Lines, Lines]:
    return Lines(path), Lines(path)


def split(kind: str, workers: int = 0, **kwargs: Any) -> Splits:
    config = OwnData(name=f"{__name__}:{kind}", kwargs=kwargs)
    splits = own.load(config, 0, workers)
    return Splits(splits.train, splits.validation, splits.digest, {}, workers, streamed=splits.streamed)


@pytest.mark.parametrize("kind", ["rows", "lines"])
def test_workers_share_no_file_that_the_rank_has_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text("".join(f"{number:08d}" for number in range(NUM_SAMPLES)))
    splits = split(kind, 2, path=str(path))
    assert splits.validation.num_samples == NUM_SAMPLES
    assert splits.digest == split(kind, 0, path=str(path)).digest
    feed = Feed(splits, 0, Train(max_steps=1, global_batch=1500), CPU, 0, 1)
    found = [feed.first(), *(batch for position in (1500, 3000, 4500) for _, _, batch in feed.step(position))]
    feed.close()
    numbers, own_file = (torch.cat(part) for part in zip(*found, strict=True))
    assert own_file.all()
    assert numbers.unique().tolist() == list(range(NUM_SAMPLES))
    requests = [(torch.arange(first, first + 2000), None) for first in (0, 2000, 4000)]
    held_out = [*loaded(splits.validation, requests, CPU, 2)]
    assert torch.cat([numbers for numbers, _ in held_out]).tolist() == list(range(NUM_SAMPLES))
    assert all(own_file.all() for _, own_file in held_out)


class Packed(IterableDataset[Any]):
    """What is iterated holds text until `decode` takes it out."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(5):
            yield {"text": str(number)}

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        sample["number"] = int(sample.pop("text"))
        return sample


def packed() -> tuple[Packed, Packed]:
    return Packed(), Packed()


def test_a_decode_that_alters_its_sample_has_it_once() -> None:
    splits = split("packed")
    padded = splits.validation.batch(torch.tensor([3, 4, 4, 4]))
    assert padded["number"].tolist() == [3, 4, 4, 4]
    assert splits.validation.batch(torch.tensor([4, 4]))["number"].tolist() == [4, 4]
    for seed in (1, 2):
        assert splits.train.batch(torch.tensor([0]), torch.tensor([seed]))["number"].tolist() == [0]


class Torn:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        if index:
            raise KeyError("no such column")
        return index


class Nothing:
    num_samples = 0

    def batch(self, indices: torch.Tensor, seeds: torch.Tensor | None = None) -> torch.Tensor:
        return indices


class Away(Torn):
    def __getitem__(self, index: int) -> int:
        return len(Path("/nowhere/at/all").read_text())


def pair(of: str) -> tuple[Any, Any]:
    return globals()[of](), globals()[of]()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_goes_wrong_in_samples_is_told_by_their_key(workers: int) -> None:
    wrong = (
        rf"data.name = '{__name__}:pair': the training samples \(Torn\) raised KeyError: 'no such column' \(.*:\d+\)"
    )
    with pytest.raises(UserError, match=wrong):
        split("pair", workers, of="Torn")
    with pytest.raises(UserError, match="are none: num_samples = 0"):
        split("pair", workers, of="Nothing")
    with pytest.raises(data.AbsentError, match="FileNotFoundError"):
        split("pair", workers, of="Away")


def test_the_contract_tells_of_each_run_whatever_its_samples_raise() -> None:
    tree = {"recipe": "r", "task": "images", "task_kwargs": {"num_classes": 2}, "model": {"name": "conv"}}
    tree["train"] = {"max_steps": 1, "global_batch": 2}
    own_data = {"name": f"{__name__}:pair", "kwargs": {"of": "Torn"}, "workers": 0}
    for name in ("a", "b"):
        (problem,) = contract.problems_of(Run.model_validate(tree | {"run": name, "data": own_data}))
        assert problem.startswith(
            f"run '{name}': data.name = '{__name__}:pair': the training samples (Torn) raised Key"
        )


def test_a_digest_is_of_any_type() -> None:
    one = torch.tensor([1.0, 2.0])
    assert digest_of(one.bfloat16()) != digest_of(2 * one.bfloat16())
    assert digest_of(torch.tensor(1.5)) == digest_of(torch.tensor([1.5]))
