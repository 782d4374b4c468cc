"""`trainpkg.launch.spawn` from a program: who fails is told, and no process outlives the program, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.launching import ROOT, Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


def heed_ctrl_c() -> None:
    """As in a terminal: where these tests run in the background of a script, SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Program(Launch):
    """tests/distributed/spawning.py; `run` asserts that nothing is left."""

    def __init__(self, folder: Path, how: str) -> None:
        super().__init__(folder, limit_s=150.0)
        folder.mkdir()
        self.how = how

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.distributed.spawning", self.how, str(self.folder)],
                cwd=ROOT, env=dict(os.environ) | {"OMP_NUM_THREADS": "1", "TEST_MARK": self.mark},
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=heed_ctrl_c,
            )  # fmt: skip


def test_ranks_know_each_other(tmp_path: Path) -> None:
    done = Program(tmp_path / "p", "good").run()
    assert done.status == 0, done.output
    told = [json.loads((done.folder / f"rank-{rank}").read_text()) for rank in range(3)]
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) for one in told] == [
        (str(rank), str(rank), "3", "3") for rank in range(3)
    ]
    (place,) = {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told}
    assert place[0] == "127.0.0.1" and int(place[1]) < 32768  # below the ports of outgoing connections
    assert [(done.folder / f"sum-{rank}").read_text() for rank in range(2)] == ["3.0", "3.0"]


@pytest.mark.failure("F095")
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", [1, 1, None, True, "raised ValueError: the loss is nan"]),
        ("kill", [1, None, 9, False, "was killed by SIGKILL"]),
        ("exit", [1, 7, None, False, "ended with status 7"]),
    ],
)
def test_the_first_failure_ends_all_and_is_told(tmp_path: Path, how: str, told: list[object]) -> None:
    """Also what the other ranks have started: children, and children in sessions of their own."""
    done = Program(tmp_path / "p", how).run()
    assert done.status == 0, done.output
    found = json.loads(done.last_line)
    assert found[:4] == told[:4]
    assert "rank 1 (process " in found[4] and str(told[4]) in found[4]
    assert done.seconds < 60


@pytest.mark.failure("F093")
@pytest.mark.failure("F095")
@pytest.mark.parametrize("how", ["join", "handle"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_program(tmp_path: Path, how: str, signum: signal.Signals) -> None:
    def strike(program: Launch, process: subprocess.Popen[bytes]) -> None:
        program.wait_for(lambda: len(list(program.folder.glob("hangs-*"))) == 2, "both ranks")
        os.kill(process.pid, signum)

    done = Program(tmp_path / "p", how).run(strike)
    assert done.status == -signum, done.output
    assert "Traceback" not in done.output or signum == signal.SIGINT


def test_a_handle_waits_for_a_while_and_kills(tmp_path: Path) -> None:
    program = Program(tmp_path / "p", "handle")
    (program.folder / "kill").touch()
    done = program.run()
    assert (done.status, done.last_line) == (0, "False 2"), done.output


def test_daemons_end_with_a_program_that_ends_well(tmp_path: Path) -> None:
    done = Program(tmp_path / "p", "daemon").run()
    assert (done.status, done.output) == (0, "")


def test_an_argument_that_cannot_be_sent_is_named_before_anything_starts(tmp_path: Path) -> None:
    done = Program(tmp_path / "p", "argument").run()
    assert done.status == 1
    assert "args[1], a TextIOWrapper, cannot be sent to another process" in done.last_line
    assert not list(done.folder.iterdir())
