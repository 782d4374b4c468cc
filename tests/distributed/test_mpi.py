"""Ranks that mpirun starts on simulated nodes: a real MPI says who is who, and the group is gloo's as always."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from tests.distributed import launching, start
from tests.distributed.launched import make_run
from tests.distributed.launching import Launch

NO_MPI = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is needed: apt-get install openmpi-bin")
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120), NO_MPI]
MPI = {"nodes": 2, "gpus_per_node": 2, "backend": "mpi"}


@pytest.mark.failure("F073")
@pytest.mark.timeout(240)  # four processes that each import torch for themselves
def test_mpirun_trains_to_the_weights_of_spawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "LIMIT_S", 200.0)
    done = Launch(tmp_path / "mpi", MPI, {"entry": None, "preload": None}).run()
    assert done.status == 0, done.output
    assert "rank 3 of 4): tcp://127.0.0.1:" in (tmp_path / "mpi/launch/1/0/rank-3.log").read_text()
    (tmp_path / "fork").mkdir()
    start.run_ranks(make_run(tmp_path / "fork/train.json", **MPI), tmp_path / "fork", 4, nodes=[2, 2])
    one, other = start.weights(tmp_path / "fork"), start.weights(tmp_path / "mpi")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.failure("F093")
def test_ctrl_c_ends_mpirun_and_nothing_of_mpi_is_in_a_rank(tmp_path: Path) -> None:
    libraries: list[bool] = []

    def interrupt(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        for pid in launch.processes("trainpkg.launch.start.enter"):
            libraries.append("libmpi" in Path(f"/proc/{pid}/maps").read_text())
        process.send_signal(signal.SIGINT)

    done = Launch(tmp_path / "run", MPI, environment={"TEST_STEPS": "5000", "TEST_GRANDCHILDREN": "1"}).run(interrupt)
    assert done.status == 130, done.output
    assert libraries == [False] * 4


@pytest.mark.failure("F070")
@pytest.mark.failure("F072")
def test_a_world_of_singletons_is_refused_by_name(tmp_path: Path) -> None:
    """A launcher that MPI does not understand starts every task as rank 0 of 1, without an error of its own."""
    script = """#!/bin/bash
[[ $1 == --version ]] && { echo 'mpirun (Open MPI) 9.9'; exit; }
while [[ $1 != bash ]]; do shift; done
for task in 1 2 3 4; do "$@" & done
wait
"""
    (tmp_path / "mpirun").write_text(script)
    (tmp_path / "mpirun").chmod(0o755)
    done = Launch(tmp_path / "run", MPI, environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).run()
    assert done.status == 1, done.output
    assert "MPI says rank 0 of 1 in each of 4 tasks: Open MPI was not reached by what started it" in done.last_line
    assert "mpirun is mpirun (Open MPI) 9.9; mpi4py loads Open MPI v" in done.last_line


@pytest.mark.failure("F067")
def test_tasks_that_never_come_are_named_with_the_last_words_of_their_step(tmp_path: Path) -> None:
    script = """#!/bin/bash
[[ $1 == --version ]] && { echo 'mpirun (Open MPI) 9.9'; exit; }
echo 'There are not enough slots available in the system' >&2
exit 1
"""
    (tmp_path / "mpirun").write_text(script)
    (tmp_path / "mpirun").chmod(0o755)
    done = Launch(tmp_path / "run", MPI, environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).run()
    assert done.status == 1, done.output
    assert "rank 0 on node 0 (sim0) was never started: mpirun ended with status 1: There are not" in done.last_line
    assert done.seconds < 30
    (tmp_path / "mpirun").write_text(script.replace("exit 1", "sleep 600"))
    done = Launch(
        tmp_path / "other", MPI | {"init_timeout_s": 3.0}, environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ).run()
    assert "was never started: its step has brought no task for it within 3 s" in done.last_line
