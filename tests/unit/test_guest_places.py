"""What ranks under someone else's launcher say of themselves: laid out on nodes, or the contradiction named."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from trainpkg.__main__ import main
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.guest.command import require_own, surroundings
from trainpkg.guest.places import Place, lay_out, missing, twice
from trainpkg.launch import network
from trainpkg.launch.start.identity import Identity


def place(rank: int, host: str = "a", **more: Any) -> Place:
    values: dict[str, Any] = {
        "rank": rank, "world_size": 4, "local_rank": rank % 2, "local_world_size": 2, "node_rank": None, "host": host,
        "pid": 100 + rank, "machine": f"boot-{host}", "devices": "", "versions": {"torch": "2.13"}, "code_hash": "c",
        "fingerprint": "f",
    }  # fmt: skip
    return Place(**(values | more))


FOUR = [place(0), place(1), place(2, "b"), place(3, "b")]


@pytest.mark.failure("F051")
def test_ranks_are_laid_out_on_the_nodes_where_they_are() -> None:
    found = lay_out(FOUR)
    assert (found.node_of, found.num_here, found.hosts, found.counts) == ([0, 0, 1, 1], [2] * 4, ["a", "b"], [2, 2])
    assert found.in_blocks
    uneven = [place(0, local_world_size=1), *(place(k, "b", local_rank=k - 1, local_world_size=3) for k in (1, 2, 3))]
    assert lay_out(uneven).num_here == [1, 3, 3, 3]
    cyclic = [place(k, "ab"[k % 2], local_rank=k // 2, local_world_size=None) for k in range(4)]
    assert (lay_out(cyclic).node_of, lay_out(cyclic).in_blocks) == ([0, 1, 0, 1], False)
    two_agents = [place(k, node_rank=k // 2) for k in range(4)]  # of torchrun, on one machine
    assert (lay_out(two_agents).counts, lay_out(two_agents).hosts) == ([2, 2], ["a-0", "a-1"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"world_size": 8}, ["WORLD_SIZE is 4 on rank 0 on a (process 100), but 8 on rank 3 on b (process 103)"]),
        ({"fingerprint": "g"}, ["fingerprint", "'f'", "'g' on rank 3"]),
        ({"versions": {"torch": "2.12"}}, ["the version of torch", "'2.12' on rank 3"]),
        ({"code_hash": "d"}, ["the code of trainpkg"]),
        ({"local_world_size": 4}, ["rank 3", "its node has 4 ranks (LOCAL_WORLD_SIZE)", "there are 2"]),
    ],
)
def test_ranks_that_contradict_each_other(change: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        lay_out([*FOUR[:3], dataclasses.replace(FOUR[3], **change)])
    assert all(part in str(caught.value) for part in named), str(caught.value)


@pytest.mark.failure("F052")
def test_two_ranks_on_one_gpu() -> None:
    on_gpus = [dataclasses.replace(one, devices="0,1") for one in FOUR]
    assert lay_out(on_gpus).counts == [2, 2]
    with pytest.raises(UserError, match=r"rank 2 on b .* and rank 3 on b .* are both local rank 0"):
        lay_out([*on_gpus[:3], dataclasses.replace(on_gpus[3], local_rank=0)])
    bound = [dataclasses.replace(one, devices=str(one.local_rank), local_rank=0) for one in FOUR]  # each sees its own
    assert lay_out(bound).counts == [2, 2]


def test_a_rank_that_comes_twice_and_one_that_does_not() -> None:
    """Node indices given as ranks: 0, 1, 2, 3 where 0, 8, 16, 24 was meant."""
    ranks = [(0, "a", 0), (1, "a", 1), (1, "b", 0)]
    eight = [place(rank, host, local_rank=local, local_world_size=8, pid=local) for rank, host, local in ranks]
    text = str(twice(eight[1], eight[2], [eight[0]]))
    assert "two processes say that they are rank 1 (RANK): a, process 1, and b, process 0" in text
    assert "0, 1 look like node indices given as ranks; the first ranks of these nodes are 0, 8" in text
    text = str(missing({0: FOUR[0], 2: FOUR[2]}, 4, 60))
    assert "rank 1, rank 3 of 4 (WORLD_SIZE) did not come within 60 s" in text and "rank 2 on b" in text


def a_run(**launch: Any) -> Run:
    tree = {"run": "r", "recipe": "x", "task": "images", "model": {"name": "conv"}, "data": {"name": "digits"}}
    return Run.model_validate(tree | {"train": {"max_steps": 1, "global_batch": 8}, "launch": launch})


def test_what_a_rank_needs_before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    me = Identity("openmpi", 1, 8, 1, 4)
    assert surroundings(a_run(), me, None, {})["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in surroundings(a_run(), me, None, {"OMP_NUM_THREADS": "2"})
    bound = surroundings(a_run(), Identity("slurm", 1, 8, 1, 4), None, {"SLURM_CPUS_PER_TASK": "3"})
    assert bound["OMP_NUM_THREADS"] == "3"
    given = surroundings(a_run(env={"A": "1"}, env_prepend={"PATH": "/x"}), me, None, {"PATH": "/bin"})
    assert (given["A"], given["PATH"]) == ("1", "/x:/bin")


def test_a_program_of_ones_own_has_no_rank_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.yaml").write_text("entry: {module: mine}\n")
    (tmp_path / "runs.tsv").write_text("run\trecipe\na\tr\n")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    config = json.dumps({"sheet": f"{tmp_path}/runs.tsv", "recipes": str(tmp_path)})
    assert main(["train", "--config-json", config, "--run", "a"]) == 2
    assert "start the run with `trainpkg launch train`" in capsys.readouterr().err


@pytest.mark.failure("F007")
@pytest.mark.failure("F003")
def test_rank_0_is_where_master_addr_says(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [network.InterfaceAddress("eth0", "10.0.0.5")]
    monkeypatch.setattr(network, "own_addresses", lambda: own)
    monkeypatch.setattr(network, "reachable_addresses", lambda: ["10.0.0.5"])
    require_own("10.0.0.5", {})
    require_own("localhost", {})
    with pytest.raises(UserError) as caught:
        require_own("10.9.9.9", {"SLURM_LAUNCH_NODE_IPADDR": "10.9.9.9"})
    assert "10.9.9.9" in str(caught.value) and f"{socket.gethostname()} (have 10.0.0.5)" in str(caught.value)
    assert "where srun was called" in str(caught.value)
