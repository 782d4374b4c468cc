"""One writer per run directory, whatever became of the earlier one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainpkg.errors import UserError
from trainpkg.launch.head import lock


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_S", 0.1)


def fake_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program called squeue in front of the PATH: Slurm's side of the conversation."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def left_behind(run_dir: Path, **changes: object) -> None:
    """A lock as another host's process would have left it."""
    holder = {
        "token": "x",
        "job": None,
        "host": "elsewhere",
        "pid": 1,
        "pid_started": "b:1",
        "beat": 3,
        "beat_unix_s": 0,
    }
    (run_dir / "lock").write_text(json.dumps(holder | changes))


def test_a_second_writer_is_refused_by_name_and_may_start_when_the_first_has_ended(tmp_path: Path) -> None:
    with lock.acquire(tmp_path, job=None, wait=False):
        with pytest.raises(UserError, match=f"process {os.getpid()} on .* is alive") as refused:
            lock.acquire(tmp_path, job=None, wait=False)
        assert refused.value.status == 78
    assert not (tmp_path / "lock").exists()
    lock.acquire(tmp_path, job=None, wait=False).release()
    assert list(tmp_path.iterdir()) == []


def test_a_waiting_writer_starts_when_the_first_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = lock.acquire(tmp_path, job=None, wait=False)
    threading.Timer(0.5, first.release).start()
    started = time.monotonic()
    with lock.acquire(tmp_path, job=None, wait=True):
        assert time.monotonic() - started > 0.3
    assert "waiting for process" in capsys.readouterr().err


def test_a_killed_process_of_this_host_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from trainpkg.launch.head import lock;"
        "lock.acquire(Path(sys.argv[1]), job=None, wait=False); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=30)
    assert (tmp_path / "lock").exists()
    with lock.acquire(tmp_path, job=None, wait=False):
        pass


def test_another_hosts_lock_is_free_after_three_missed_beats_and_held_while_it_beats(tmp_path: Path) -> None:
    left_behind(tmp_path)
    beating = threading.Event()

    def beat() -> None:
        count = 0
        while not beating.wait(0.05):
            count += 1
            left_behind(tmp_path, beat=count)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UserError, match="on elsewhere"):
            lock.acquire(tmp_path, job=None, wait=False)
    finally:
        beating.set()
        thread.join()
    with lock.acquire(tmp_path, job=None, wait=False):
        pass


@pytest.mark.parametrize(
    ("answer", "held"),
    [
        ("echo RUNNING", True),
        ("echo PENDING", True),
        ("echo COMPLETED", False),
        ("echo CANCELLED", False),
        ("true", False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", False),  # falls back to the beat, which has stopped
    ],
)
def test_slurm_is_asked_about_the_holders_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, held: bool
) -> None:
    fake_squeue(tmp_path, monkeypatch, answer)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    left_behind(run_dir, job="41")
    if held:
        with pytest.raises(UserError, match="Slurm job 41"):
            lock.acquire(run_dir, job="42", wait=False)
    else:
        lock.acquire(run_dir, job="42", wait=False).release()


def test_a_torn_lock_file_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    lock.acquire(tmp_path, job=None, wait=False).release()


def test_the_holder_notices_that_its_lock_was_taken(tmp_path: Path) -> None:
    held = lock.acquire(tmp_path, job=None, wait=False)
    left_behind(tmp_path)
    assert held.lost.wait(5)
    held.release()
    assert (tmp_path / "lock").exists(), "another's lock is not ours to remove"
