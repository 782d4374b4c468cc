"""Parts of checkpoints and checks that need no other rank: what the index may hold, sums that stay exact."""

from __future__ import annotations

import io
import pickle
from pathlib import Path, PosixPath

import numpy as np
import pytest
import torch

from trainpkg.runtime import checks, manifest, tensors


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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_weight_without_gradient_has_nothing_to_save_and_nothing_to_load(tmp_path: Path) -> None:
    """As with ddp.find_unused_parameters: what an optimizer keeps for it begins when it is first used."""

    def fresh() -> tuple[torch.nn.ModuleDict, torch.optim.AdamW]:
        model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("used", "unused")})
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def step(model: torch.nn.ModuleDict, optimizer: torch.optim.AdamW, *names: str) -> None:
        torch.stack([model[name](torch.ones(1, 3)).sum() for name in names]).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    model, optimizer = fresh()
    step(model, optimizer, "used")
    found: list[manifest.Files] = []
    writer = tensors.Writer(tmp_path, {"note": "x"}, found.append, beside=False)
    tensors.Here().save(tensors.of_training(model, [optimizer]), writer).result()
    assert found == [manifest.describe(tmp_path, [".metadata", "__0_0.distcp", "note"])], "summed while written"
    again, its = fresh()
    saved = tensors.sizes(tmp_path)
    tensors.make_room(again, [its], saved)
    assert len(saved) == 4 + 6 and saved["optimizer.used.weight.exp_avg"] == torch.Size([3, 3])
    tensors.load(tmp_path, tensors.of_training(again, [its]))
    for one, its_optimizer in ((model, optimizer), (again, its)):
        step(one, its_optimizer, "used", "unused")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
