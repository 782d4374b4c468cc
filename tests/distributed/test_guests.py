"""`trainpkg train` as a rank of torchrun, of mpirun, and of a person who sets the variables by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.guests import OTHERS, start_guests, write_config
from tests.distributed.start import free_port

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


def openmpi(rank: int, size: int, **more: Any) -> dict[str, Any]:
    """What mpirun sets, on one node, and what it was told to with -x."""
    words = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    return {f"OMPI_COMM_WORLD_{word}": value for word, value in words.items()} | {"MASTER_ADDR": "127.0.0.1"} | more


def by_hand(rank: int, local_rank: int, port: int, size: int = 16) -> dict[str, Any]:
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 8}
    return place | {"MASTER_ADDR": "localhost", "MASTER_PORT": port}


def test_torchrun_starts_our_ranks(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    command = [*torchrun, f"--master-port={free_port()}", "-m", "--", "trainpkg", "train", "--config", str(config)]
    env = {name: value for name, value in os.environ.items() if not OTHERS.match(name)} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--run", "digits"], env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 1 of 2, local rank 1 of 2, as torchrun says (RANK=1, " in done.stdout
    run_dir = tmp_path / "results/runs/digits"
    result = json.loads((run_dir / "train.json").read_text())
    assert (result["world_size"], result["num_nodes"], result["gpus_per_node"], result["steps"]) == (2, 1, [2], 8)
    ended = json.loads((run_dir / "launch/1/attempt.json").read_text())
    assert (ended["verdict"], ended["status"], ended["step_last"]) == ("finished", 0, 8)
    plan = json.loads((run_dir / "launch/1/0/plan.json").read_text())
    assert (plan["world_size"], plan["nodes"][0]["num_ranks"]) == (2, 2)
    assert (run_dir / "config.yaml").exists() and not (run_dir / "lock").exists()


@pytest.mark.failure("F073")
def test_mpirun_starts_our_ranks_and_the_group_is_not_mpis(tmp_path: Path) -> None:
    """Then once more: finished is finished, on every rank."""
    write_config(tmp_path)
    for say in ("as Open MPI's mpirun says (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2", "is finished already"):
        port = free_port()
        ranks = start_guests(tmp_path, [openmpi(rank, 2, MASTER_PORT=port) for rank in range(2)])
        assert ranks.wait() == [0, 0], ranks.text()
        assert say in ranks.text()
    assert json.loads((tmp_path / "results/runs/digits/train.json").read_text())["backend"] == "gloo"


@pytest.mark.failure("F032")
def test_what_keeps_ranks_apart_is_named_on_all_that_came(tmp_path: Path) -> None:
    write_config(tmp_path, init_timeout_s=3.0)
    port = free_port()
    lost = start_guests(tmp_path, [openmpi(rank, 3, MASTER_PORT=port) for rank in (0, 1)])
    assert lost.wait() == [2, 2], lost.text()
    for log in lost.logs:
        assert "rank 2 of 3 (WORLD_SIZE) did not come within 3 s" in log.read_text(), lost.text()
    port = free_port()
    indices = tmp_path / "indices"  # of nodes, given as ranks
    write_config(indices)
    ranks = start_guests(indices, [by_hand(0, 0, port), by_hand(1, 1, port), by_hand(1, 0, port)])
    assert ranks.wait() == [2, 2, 2], ranks.text()
    for log in ranks.logs:
        text = log.read_text()
        assert "two processes say that they are rank 1 (RANK)" in text and "Traceback" not in text, ranks.text()
    assert not (indices / "results/runs/digits/launch").exists()
    taken = tmp_path / "taken"  # two runs with one port
    write_config(taken, init_timeout_s=3.0)
    port = free_port()
    waits = start_guests(taken, [openmpi(0, 2, MASTER_PORT=port)])
    waits.processes[0].join(1.0)
    second = start_guests(tmp_path / "indices", [openmpi(0, 2, MASTER_PORT=port)])
    assert second.wait() == [2], second.text()
    assert f"rank 0 cannot listen at MASTER_PORT={port}" in second.text() and waits.wait() == [2]


def test_a_run_that_another_process_writes_is_refused_on_all_ranks(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("max_steps: 8", "max_steps: 100000"))
    first = start_guests(tmp_path, [{}])
    lock = tmp_path / "results/runs/digits/lock"
    first.wait_for(lock.exists)
    port = free_port()
    others = tmp_path / "others"
    others.mkdir()
    (others / "config.yaml").write_text(config.read_text())
    refused = start_guests(others, [openmpi(rank, 2, MASTER_PORT=port) for rank in range(2)])
    assert refused.wait() == [78, 78], refused.text()
    assert all("this run is being written by" in log.read_text() for log in refused.logs)
    for process in first.processes:
        process.terminate()
    assert first.wait() == [75], first.text()  # saved, and to be run again
    assert json.loads((tmp_path / "results/runs/digits/launch/1/attempt.json").read_text())["verdict"] == "again"
