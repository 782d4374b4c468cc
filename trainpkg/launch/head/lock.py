"""One writer per run directory: a lock file that names the job holding it, with a beat.

Created with O_EXCL and replaced by rename, never flock, which some network file systems do not keep. A holder that is a
Slurm job is alive as long as Slurm says so. Where Slurm cannot answer, a process that is gone from this host, or three
beats missed on the reader's own clock (hosts' clocks differ), free the lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from trainpkg.errors import UserError

BEAT_S = 5.0
MISSED_BEATS = 3
ENDED_STATES = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
}  # fmt: skip


class Lock:
    """A held lock; a thread beats until `release`, also called by leaving the `with` block.

    `lost` is set when the file names another holder: somebody took the lock over while this process could not beat.
    """

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        self.path, self.holder = path, holder
        self.lost = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock-beat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                held = _read(self.path)
                if held is not None and held.get("token") != self.holder["token"]:
                    self.lost.set()
                    return
                self.holder["beat"] += 1
                self.holder["beat_unix_s"] = time.time()
                _replace(self.path, self.holder)
            except OSError as error:  # a full disk must not end the run; three beats are three tries
                print(f"trainpkg: lock {self.path}: no beat written: {error.strerror}", file=sys.stderr)

    def release(self) -> None:
        """Remove the file, unless it names another holder by now."""
        self._ended.set()
        self._thread.join()
        held = _read(self.path)
        if held is not None and held.get("token") == self.holder["token"]:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(run_dir: Path, *, job: str | None, wait: bool) -> Lock:
    """Take the lock of a run directory for this process (and the Slurm job it belongs to).

    A living holder is waited for (and named once) when `wait`, else UserError with status 78, "do not run again".
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / "lock"
    holder = {
        "token": secrets.token_hex(8),
        "job": job,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "pid_started": _process_start(os.getpid()),
        "beat": 0,
        "beat_unix_s": time.time(),
    }
    told = False
    while not _create(path, holder):
        held = _read(path)
        if held is None or (held.get("token") is None and not _beats(path)):  # gone meanwhile, or empty for good
            if held is not None:
                _take_away(path, held)
            continue
        if not _alive(path, held, job):
            print(f"trainpkg: {path}: its holder ({describe(held)}) has gone; taking over", file=sys.stderr)
            _take_away(path, held)
            continue
        if not wait:
            raise UserError(
                f"{path}: this run is being written by {describe(held)}, which is alive; two writers would spoil it. "
                "Nothing was started. When that job has ended, start Snakemake again: it goes on from there.",
                status=78,
            )
        if not told:
            print(f"trainpkg: {path}: waiting for {describe(held)}, which is writing this run", file=sys.stderr)
            told = True
        time.sleep(BEAT_S if held.get("job") else min(BEAT_S, 1.0))  # each look at a job asks Slurm
    return Lock(path, holder)


def describe(held: dict[str, Any]) -> str:
    """Who holds a lock, for people."""
    job = f"Slurm job {held['job']}, " if held.get("job") else ""
    return f"{job}process {held.get('pid')} on {held.get('host')}"


def _create(path: Path, holder: dict[str, Any]) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        json.dump(holder, file)
    return True


def _replace(path: Path, holder: dict[str, Any]) -> None:
    beside = path.with_name(f".lock.{holder['token']}")
    beside.write_text(json.dumps(holder))
    beside.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    """The holder; an empty mapping for a file that a crash left unreadable; None where there is no file."""
    try:
        try:
            text = path.read_text()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            text = path.read_text()  # a network file system held the file that another host has replaced meanwhile
        held = json.loads(text)
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


def _take_away(path: Path, held: dict[str, Any]) -> None:
    """Rename the stale file away; put it back when somebody else's new lock was caught instead."""
    aside = path.with_name(f".lock.stale.{secrets.token_hex(4)}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    caught = _read(aside)
    if caught is not None and caught.get("token") != held.get("token"):
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)


def _alive(path: Path, held: dict[str, Any], own_job: str | None) -> bool:
    same_host = held.get("host") == socket.gethostname()
    if same_host and held.get("pid_started") != _process_start(int(held.get("pid") or 0)):
        return False
    job = held.get("job")
    if job and job != own_job:
        state = job_state(str(job))
        if state is not None:
            return state not in ENDED_STATES
    return same_host or _beats(path)  # an own job's earlier life on another host (requeue) has stopped beating


def _beats(path: Path) -> bool:
    """Whether the file changes within three beats, by this process's own clock."""
    before = _read(path)
    end = time.monotonic() + MISSED_BEATS * BEAT_S
    while time.monotonic() < end:
        time.sleep(BEAT_S / 5)
        if _read(path) != before:
            return True
    return False


def job_state(job: str) -> str | None:
    """Slurm's state of a job, "GONE" spelled as COMPLETED where Slurm no longer knows it; None: Slurm cannot answer."""
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if asked.returncode == 0:
        return asked.stdout.split()[0] if asked.stdout.split() else "COMPLETED"
    return "COMPLETED" if "Invalid job id" in asked.stderr else None


def _process_start(pid: int) -> str | None:
    """Start time of a process in clock ticks (field 22 of /proc/PID/stat) with the boot's id; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else f"{boot}:{fields[19]}"
