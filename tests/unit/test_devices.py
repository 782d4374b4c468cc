"""Which GPU is a rank's own: with --gpus-per-task, with --gpu-bind, and where every rank is shown all of the node's."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from tests.unit.test_runtime import context
from trainpkg.errors import UserError
from trainpkg.runtime import devices
from trainpkg.runtime.devices import index_among, own_index
from trainpkg.runtime.distributed import RankContext

A, B, C, D = "GPU-a", "GPU-b", "GPU-c", "GPU-d"


def indices(*shown: str) -> list[int]:
    lists = [text.split() for text in shown]
    return [index_among(lists, rank) for rank in range(len(lists))]


@pytest.mark.failure("F059")
def test_one_gpu_per_task_is_device_0_whatever_the_local_rank() -> None:
    assert [own_index(1, rank, 4) for rank in range(4)] == [0] * 4
    assert indices(A, B, C, D) == [0] * 4


def test_a_rank_that_is_shown_all_takes_the_one_of_its_local_rank() -> None:
    assert [own_index(4, rank, 4) for rank in range(4)] == [0, 1, 2, 3]
    assert [own_index(8, rank, 4) for rank in range(4)] == [0, 1, 2, 3]
    assert indices(*[f"{A} {B} {C} {D}"] * 4) == [0, 1, 2, 3]


@pytest.mark.failure("F061")
def test_subsets_are_shared_out_by_what_each_rank_is_shown() -> None:
    assert own_index(2, 3, 4) is None
    assert indices(f"{C} {D}", f"{C} {D}", f"{A} {B}", f"{A} {B}") == [0, 1, 0, 1]  # block over the sockets
    assert indices(f"{A} {B}", f"{C} {D}", f"{A} {B}", f"{C} {D}") == [0, 0, 1, 1]  # cyclic: Slurm's default
    assert indices(f"{A} {B} {C}", A, f"{A} {B}", f"{A} {B} {C} {D}") == [2, 0, 1, 3]  # whoever has a choice gives way


@pytest.mark.failure("F061")
@settings(deadline=None)  # a loaded machine is slow
@given(st.permutations(range(6)), st.lists(st.sets(st.integers(0, 5)), min_size=6, max_size=6))
def test_no_two_ranks_share_a_gpu_where_that_can_be_avoided(own: list[int], more: list[set[int]]) -> None:
    lists = [[str(gpu) for gpu in sorted({mine, *others})] for mine, others in zip(own, more, strict=True)]
    assert len({lists[rank][index_among(lists, rank)] for rank in range(6)}) == 6


@pytest.mark.failure("F061")
def test_ranks_that_must_share_a_gpu_are_named() -> None:
    with pytest.raises(UserError, match=r"local ranks 0, 1 of this node are shown 1 GPU\(s\) together \(GPU-a\)"):
        indices(A, A, B)
    with pytest.raises(UserError, match=r"local ranks 0, 1, 3 of this node are shown 2 GPU\(s\) together"):
        indices(f"{A} {B}", f"{B} {A}", f"{C} {D}", A)


def test_device_of_a_rank_by_its_own_view(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.pick("cpu", 3, 4) == torch.device("cpu")
    for visible, local_rank, expected in ((4, 3, 3), (1, 3, 0), (1, 0, 0), (2, 3, 1)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=visible: count)
        assert devices.pick("cuda", local_rank, 4) == torch.device("cuda", expected)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match="sees no GPU"):
        devices.pick("cuda", 0, 1)


def settle(monkeypatch: pytest.MonkeyPatch, shown: list[list[str]], *, shares: bool = False) -> list[str]:
    """The device of each rank on node 1 of two, all ranks in this process: each publishes, then the last pass reads."""
    store, first = HashStore(), len(shown)
    found: list[RankContext] = []
    for again, local_rank in itertools.product((False, True), range(len(shown))):
        mine = shown[local_rank]
        monkeypatch.setattr(torch.cuda, "device_count", lambda mine=mine: len(mine))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i, mine=mine: SimpleNamespace(uuid=mine[i]))
        device = devices.pick("cuda", local_rank, len(shown))
        own = dataclasses.replace(
            context(first + local_rank),
            node_rank=1,
            local_rank=local_rank,
            local_world_size=len(shown),
            device=device,
            shares_gpus=shares,
        )
        if again:
            found.append(devices.settle(own, store))
        else:  # the others have not spoken: reading would wait
            store.set(f"gpus/1/{local_rank}", str(mine).replace("'", '"'))
    return [str(one.device) for one in found]


@pytest.mark.failure("F059", "F061")
def test_ranks_of_a_node_agree_through_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settle(monkeypatch, [[A, B], [C, D], [A, B], [C, D]]) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert settle(monkeypatch, [[A], [B]]) == ["cuda:0", "cuda:0"]
    assert settle(monkeypatch, [[A, B], [A, B]]) == ["cuda:0", "cuda:1"]
    with pytest.raises(UserError, match="local ranks 0, 1 of this node are shown 1"):
        settle(monkeypatch, [[A], [A]])
    assert settle(monkeypatch, [[A], [A]], shares=True) == ["cuda:0", "cuda:0"]
