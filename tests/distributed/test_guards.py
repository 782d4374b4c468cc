"""Ranks that another launcher starts, here the test itself in the place of mpirun: as guards.

The program of each node only waits: who starts a guard, and from where, makes no difference to it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launching import ROOT, Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
TWO = {"nodes": 2, "gpus_per_node": 2}


def launched(folder: Path, **environment: str) -> Launch:
    wait = f"bash -c 'until [ -e {folder / 'end'} ]; do sleep 0.05; done; : {{entry}}'"
    return Launch(folder / "run", {**TWO, "backend": "command", "command": wait}, environment=environment)


def start_guards(launch: Launch, places: list[dict[str, Any]]) -> list[subprocess.Popen[bytes]]:
    """One guard per place, with the variables of OpenMPI's mpirun."""
    launch.wait_for((launch.folder / "launch/1/0/plan.json").exists, "the plan")
    guards = []
    for place in places:
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        own |= {f"OMPI_COMM_WORLD_{name.upper()}": str(value) for name, value in place.items()}
        own |= {"TEST_MARK": launch.mark, "ONLY_THE_LAUNCHER_KNOWS": "1"}
        command = [sys.executable, "-m", "trainpkg.launch.start.guard"]
        command += [f"--spec={launch.folder / 'launch/1/spec.json'}", "--generation=0"]
        guards.append(subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    return guards


def places(count: int = 4) -> list[dict[str, Any]]:
    return [{"rank": rank, "size": 4, "local_rank": rank % 2, "local_size": 2} for rank in range(count)]


def test_ranks_started_by_another_launcher(tmp_path: Path) -> None:
    statuses: list[int] = []

    def start(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        statuses.extend(guard.wait(60) for guard in start_guards(launch, places()))
        (tmp_path / "end").touch()

    done = launched(tmp_path).run(start)
    assert done.status == 0, done.output
    assert statuses == [0] * 4
    for rank in range(4):
        assert (tmp_path / "run/launch/1/0" / f"rank-{rank}.log").read_text() == f"rank {rank} of 4 from step 0\n"
    text = done.out.read_text()
    for word in ("ONLY_THE_LAUNCHER_KNOWS", "OMPI_COMM_WORLD_RANK", '"LOCAL_RANK": "0"'):
        assert word in text
    assert "TRAINPKG_SECRET" not in text


def test_a_guard_ends_as_its_rank_did_and_the_verdict_has_the_rank_s_own_end(tmp_path: Path) -> None:
    ends: list[int] = []

    def start(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        ends.append(start_guards(launch, places())[3].wait(60))

    failed = launched(tmp_path, TEST_STEPS="2000", TEST_BAD="segv:3:4", TEST_GRANDCHILDREN="1").run(start)
    assert ends == [-signal.SIGSEGV]
    assert failed.status == 139, failed.output
    assert "rank 3 on node 1 (sim1) was killed by SIGSEGV at step 3" in failed.last_line


@pytest.mark.failure("F033")
@pytest.mark.failure("F064")
def test_a_rank_that_is_started_twice_is_refused(tmp_path: Path) -> None:
    outputs: list[str] = []

    def start(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        first = start_guards(launch, places(1))
        launch.wait_for((launch.folder / "launch/1/0/rank-0.log").exists, "rank 0")
        second = start_guards(launch, places(1))[0]
        outputs.append(second.communicate(timeout=30)[0].decode())
        first[0].wait(30)

    failed = launched(tmp_path).run(start)
    assert failed.status == 1, failed.output
    for text in (outputs[0], failed.last_line):
        assert "rank 0 of 4, local rank 0 of 2, as Open MPI's mpirun says (OMPI_COMM_WORLD_RANK=0, " in text
        assert "was started a second time" in text


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ({"rank": 1, "size": 2, "local_rank": 1}, "the launcher counts 2 ranks, the plan has 4"),
        ({"rank": 1, "size": 4, "local_rank": 0}, "made it local rank 0, but by the plan rank 1 is local rank 1"),
    ],
)
@pytest.mark.failure("F051")
@pytest.mark.failure("F052")
@pytest.mark.failure("F058")
def test_a_place_that_contradicts_the_plan_ends_the_launch(
    tmp_path: Path, place: dict[str, Any], sentence: str
) -> None:
    def start(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        assert start_guards(launch, [place])[0].wait(30) == 2

    failed = launched(tmp_path).run(start)
    assert failed.status == 1
    assert sentence in failed.last_line


def test_a_rank_dies_with_its_guard(tmp_path: Path) -> None:

    def start(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        guards = start_guards(launch, places())
        launch.wait_for_line("4 of 4 ranks joined")
        guards[2].kill()
        for guard in guards:
            guard.wait(30)

    failed = launched(tmp_path, TEST_STEPS="2000").run(start)
    assert failed.status == 137, failed.output
    assert "rank 2 on node 1 (sim1) was killed by SIGKILL" in failed.last_line


def test_guards_end_with_their_launch(tmp_path: Path) -> None:
    def start(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        start_guards(launch, places())
        launch.wait_for_line("4 of 4 ranks joined")
        process.kill()

    launched(tmp_path, TEST_STEPS="2000").run(start)  # asserts that nothing is left
