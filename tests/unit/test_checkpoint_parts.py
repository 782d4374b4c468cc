"""Parts of checkpoints and checks that need no other rank: what the index may hold, sums that stay exact."""

from __future__ import annotations

import io
import pickle
from pathlib import PosixPath

import numpy as np
import pytest
import torch

from trainpkg.runtime import checks, tensors


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_a_path_in_an_index_is_read_from_any_python(module: str) -> None:
    """Python 3.13 writes pathlib._local, which others lack."""
    written = f"c{module}\nPosixPath\n(V/\nVresults\ntR.".encode()
    assert tensors.IndexUnpickler(io.BytesIO(written)).load() == PosixPath("/results")
    with pytest.raises(pickle.UnpicklingError, match="has no place in a checkpoint"):
        tensors.IndexUnpickler(io.BytesIO(f"c{module}\nos\n.".encode())).load()


@pytest.mark.parametrize("world_size", [1, 2, 33, 1024, 5000])
def test_known_sums_are_exact_in_single_precision(world_size: int) -> None:
    total = np.zeros(1000, np.float32)
    for rank in range(world_size):
        total += checks.known_values(1000, rank, torch.device("cpu")).numpy()
    assert np.array_equal(total, checks.known_sums(1000, world_size, torch.device("cpu")).numpy())


def test_largest_partial_sum_of_the_largest_world_is_exact() -> None:
    sums = checks.known_sums(1000, 32_768, torch.device("cpu"))
    assert sums.max().item() < 2**24
