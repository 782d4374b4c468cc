"""One writer per run directory, whatever became of the earlier one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainpkg.errors import UserError
from trainpkg.launch.head import lock
from trainpkg.launch.slurm.control import Life


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


@contextlib.contextmanager
def beating(run_dir: Path, **changes: object) -> Iterator[None]:
    """Another host's process that holds the lock, and lives."""
    ended = threading.Event()

    def beat() -> None:
        count = 0
        while not ended.wait(0.05):
            count += 1
            left_behind(run_dir, beat=count, **changes)

    left_behind(run_dir, **changes)
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_second_writer_is_refused_by_name_and_may_start_when_the_first_has_ended(tmp_path: Path) -> None:
    with lock.acquire(tmp_path, None):
        with pytest.raises(UserError, match=f"process {os.getpid()} on .* is alive") as refused:
            lock.acquire(tmp_path, None)
        assert refused.value.status == 78
    assert not (tmp_path / "lock").exists()
    lock.acquire(tmp_path, None).release()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_of_this_host_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from trainpkg.launch.head import lock;"
        "lock.acquire(Path(sys.argv[1]), None); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=30)
    assert (tmp_path / "lock").exists()
    with lock.acquire(tmp_path, None):
        pass


def test_another_hosts_lock_is_free_after_three_missed_beats_and_held_while_it_beats(tmp_path: Path) -> None:
    with beating(tmp_path), pytest.raises(UserError, match="on elsewhere"):
        lock.acquire(tmp_path, None)
    with lock.acquire(tmp_path, None):
        pass


INVALID = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
OURS = "|someone|train-a"
LIFE = Life("42", "lab", 0, "train-b", "someone")


@pytest.mark.parametrize(
    ("answer", "held"),
    [
        *[(f"echo '{state}{OURS}'", True) for state in ("RUNNING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")],
        *[(f"echo '{state}{OURS}'", True) for state in ("CONFIGURING", "COMPLETING", "SPECIAL_EXIT", "REVOKED")],
        *[(f"echo '{state}{OURS}'", False) for state in ("COMPLETED", "CANCELLED", "TIMEOUT", "PREEMPTED")],
        (f"echo 'NODE_FAIL{OURS}'", False),  # and the beat has stopped
        ("echo 'RUNNING|someone|train-z'", False),  # the number went to another job
        ("echo 'RUNNING|another|train-a'", False),
        (f"echo 'CLUSTER: lab'; echo 'RUNNING{OURS}'", True),
        ("true", False),
        (INVALID, False),
    ],
)
def test_slurm_is_asked_about_the_holders_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, held: bool
) -> None:
    fake_squeue(tmp_path, monkeypatch, answer)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    left_behind(run_dir, job="41", cluster="lab", job_name="train-a", user="someone", restarts=1)
    if held:
        with pytest.raises(UserError, match="Slurm job 41, process 1 on elsewhere, which is alive") as refused:
            lock.acquire(run_dir, LIFE)
        assert refused.value.status == 78
    else:
        lock.acquire(run_dir, LIFE).release()


@pytest.mark.parametrize("answer", [f"echo 'NODE_FAIL{OURS}'", INVALID])
def test_a_job_on_a_node_that_slurm_has_lost_holds_while_it_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    fake_squeue(tmp_path, monkeypatch, answer)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with beating(run_dir, job="41", job_name="train-a", user="someone"), pytest.raises(UserError, match="still beats"):
        lock.acquire(run_dir, LIFE)


def test_a_controller_that_is_down_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = tmp_path / "asked"
    down = f"echo >> {asked}; [ $(wc -l < {asked}) -gt 2 ] && {{ echo 'PENDING{OURS}'; exit; }}; "
    fake_squeue(tmp_path, monkeypatch, down + "echo 'Unable to contact slurm controller' >&2; exit 1")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    left_behind(run_dir, job="41", job_name="train-a", user="someone")
    with pytest.raises(UserError, match=r"is alive \(PENDING\)"):
        lock.acquire(run_dir, LIFE)
    assert "waiting for Slurm to tell of Slurm job 41" in capsys.readouterr().err


def test_a_controller_that_stays_down_lets_nobody_take_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SLURM_PATIENCE_S", 0.5)
    fake_squeue(tmp_path, monkeypatch, "echo 'Unable to contact slurm controller' >&2; exit 1")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    left_behind(run_dir, job="41")
    with pytest.raises(UserError, match="Unable to contact slurm controller") as refused:
        lock.acquire(run_dir, LIFE)
    assert refused.value.status == 75, "another try finds Slurm up again"
    assert (run_dir / "lock").exists()


def test_a_job_that_waits_in_the_queue_holds_its_lock_on_the_host_where_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_squeue(tmp_path, monkeypatch, f"echo 'PENDING{OURS}'")
    first = lock.acquire(tmp_path / "run", Life("41", "lab", 0, "train-a", "someone"))
    first.kept = True
    first.release()
    with pytest.raises(UserError, match="Slurm job 41"):
        lock.acquire(tmp_path / "run", LIFE)


def test_a_requeued_job_takes_over_from_its_earlier_life_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while that one, on a node that Slurm gave up, still beats: it ends when it sees who holds the lock now."""
    monkeypatch.setattr(lock, "_beats", lambda path: pytest.fail("nobody waits for a beat"))
    fake_squeue(tmp_path, monkeypatch, "exit 9")
    first = lock.acquire(tmp_path / "run", Life("41", "lab", 0))
    second = lock.acquire(tmp_path / "run", Life("41", "lab", 1))
    assert first.lost.wait(5)
    (tmp_path / "run/lock").write_text(json.dumps(first.holder))  # it wrote once more before it looked
    time.sleep(0.3)
    assert not second.lost.is_set()
    assert json.loads((tmp_path / "run/lock").read_text())["token"] == second.holder["token"]
    first.release()
    second.release()
    assert not (tmp_path / "run/lock").exists()


def test_two_launches_in_one_life_of_a_job_are_two_writers(tmp_path: Path) -> None:
    with lock.acquire(tmp_path / "run", Life("41", "lab", 1)), pytest.raises(UserError, match="Slurm job 41"):
        lock.acquire(tmp_path / "run", Life("41", "lab", 1))


def test_another_clusters_job_is_not_mistaken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters on one file system count their jobs alike."""
    script = f'case "$*" in *--clusters=big*) echo "RUNNING{OURS}";; *) echo "COMPLETED{OURS}";; esac'
    fake_squeue(tmp_path, monkeypatch, script)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    left_behind(run_dir, job="42", cluster="big", restarts=0, job_name="train-a", user="someone")
    with pytest.raises(UserError, match="Slurm job 42"):
        lock.acquire(run_dir, Life("42", "lab", 1))


def test_a_torn_lock_file_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    lock.acquire(tmp_path, None).release()


def test_the_holder_notices_that_its_lock_was_taken(tmp_path: Path) -> None:
    held = lock.acquire(tmp_path, None)
    left_behind(tmp_path)
    assert held.lost.wait(5)
    held.release()
    assert (tmp_path / "lock").exists(), "another's lock is not ours to remove"
