"""One writer per run directory: a lock file that names the job holding it, with a beat.

Created with O_EXCL and replaced by rename, never flock, which some network file systems do not keep. A holder that is a
Slurm job is alive as long as Slurm says so: queued again it will go on. Its own later life takes the lock over at once.
Where there is no Slurm to ask, a process that is gone from this host, or three beats missed on the reader's own clock
(hosts' clocks differ), free the lock; where Slurm does not answer for a while, nobody takes anything over.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch.head.outcome import AGAIN, DO_NOT_RUN_AGAIN
from trainpkg.launch.slurm.control import Life, NoAnswerError, job_state

BEAT_S = 5.0
MISSED_BEATS = 3
SLURM_PATIENCE_S = 300.0  # a controller that restarts is back by then
# All other states live, among them PENDING (requeued), REQUEUE_HOLD, SUSPENDED, CONFIGURING, COMPLETING (processes may
# be left), REVOKED (runs elsewhere in the federation).
ENDED_STATES = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)
# Slurm has lost a node or forgotten the job: processes that it does not see may still write.
UNSURE_STATES = frozenset({"NODE_FAIL", ""})


class Lock:
    """A held lock; a thread beats until `release`, also called by leaving the `with` block.

    `lost` is set when the file names another holder: somebody took the lock over while this process could not beat.
    """

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        self.path, self.holder = path, holder
        self.lost = threading.Event()
        self.kept = False  # leave the file in its place, for the next life of this job
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock-beat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                held = _read(self.path)
                # an earlier life of this job, on a node that Slurm had given up, may still write over the file
                if held is not None and held.get("token") != self.holder["token"] and not _earlier(held, self.holder):
                    self.lost.set()
                    return
                self.holder["beat"] += 1
                self.holder["beat_unix_s"] = time.time()
                _replace(self.path, self.holder)
            except OSError as error:  # a full disk must not end the run; three beats are three tries
                print(f"trainpkg: lock {self.path}: no beat written: {error.strerror}", file=sys.stderr)

    def release(self) -> None:
        """Remove the file, unless it is kept or names another holder by now."""
        self._ended.set()
        self._thread.join()
        held = _read(self.path)
        if held is not None and held.get("token") == self.holder["token"] and not self.kept:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(run_dir: Path, life: Life | None) -> Lock:
    """Take the lock of a run directory for this process (and the Slurm job that it is part of).

    Raises:
        UserError: the holder lives (status 78, "do not run again"), or nobody can say (75, "run again").
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / "lock"
    holder = {
        "token": secrets.token_hex(8),
        "job": life.job if life else None,
        "cluster": life.cluster if life else None,
        "restarts": life.restarts if life else None,
        "job_name": life.name if life else None,
        "user": life.user if life else None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "pid_started": _process_start(os.getpid()),
        "beat": 0,
        "beat_unix_s": time.time(),
    }
    while not _create(path, holder):
        held = _read(path)
        if held is None or (held.get("token") is None and not _beats(path)):  # gone meanwhile, or empty for good
            if held is not None:
                _take_away(path, held)
            continue
        if alive := _alive(path, held, holder):
            raise UserError(
                f"{path}: this run is being written by {describe(held)}, which is alive ({alive}); two writers would "
                "spoil it. Nothing was started. When that job has ended, start Snakemake again: it goes on from there.",
                status=DO_NOT_RUN_AGAIN,
            )
        print(f"trainpkg: {path}: its holder ({describe(held)}) has gone; taking over", file=sys.stderr)
        _take_away(path, held)
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


def _same_job(held: dict[str, Any], own: dict[str, Any]) -> bool:
    return own["job"] is not None and (held.get("job"), held.get("cluster")) == (own["job"], own["cluster"])


def _earlier(held: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether the holder is an earlier life of our own job: Slurm ended it before it began ours."""
    before, now = held.get("restarts"), own["restarts"]
    return _same_job(held, own) and before is not None and now is not None and before < now


def _alive(path: Path, held: dict[str, Any], own: dict[str, Any]) -> str:
    """How we know that the holder lives; empty when it does not."""
    if _earlier(held, own):
        return ""
    state = None if held.get("job") is None or _same_job(held, own) else _ask_patiently(path, held, own)
    if state in ENDED_STATES:
        return ""
    if state in UNSURE_STATES:
        return "its lock still beats" if _beats(path) else ""
    if held.get("host") == socket.gethostname():
        # RUNNING: a job of several steps, one of which was this. In any other state the job is to go on.
        gone = held.get("pid_started") != _process_start(int(held.get("pid") or 0)) and state in (None, "RUNNING")
        return "" if gone else state or "its process is there"
    return state or ("its lock beats" if _beats(path) else "")


def _ask_patiently(path: Path, held: dict[str, Any], own: dict[str, Any]) -> str | None:
    """Slurm's state of the holder's job. A controller that is down for a minute is waited for."""
    elsewhere = held.get("cluster") or ""
    if not own["cluster"] or elsewhere == own["cluster"]:
        elsewhere = ""
    who = str(held.get("job_name") or ""), str(held.get("user") or "")
    end = time.monotonic() + SLURM_PATIENCE_S
    while True:
        try:
            return job_state(str(held["job"]), str(elsewhere), *who)
        except NoAnswerError as error:
            if time.monotonic() >= end:
                raise UserError(
                    f"{path}: this run is being written by {describe(held)}, and Slurm has not said for "
                    f"{SLURM_PATIENCE_S:g} s whether that job lives ({error}). Nothing was started. Where it is surely "
                    "gone, remove that file",
                    status=AGAIN,
                ) from error
            print(f"trainpkg: {path}: waiting for Slurm to tell of {describe(held)}: {error}", file=sys.stderr)
            if _beats(path):
                return "its lock beats"


def _beats(path: Path) -> bool:
    """Whether the file changes within three beats, by this process's own clock."""
    before = _read(path)
    end = time.monotonic() + MISSED_BEATS * BEAT_S
    while time.monotonic() < end:
        time.sleep(BEAT_S / 5)
        if _read(path) != before:
            return True
    return False


def _process_start(pid: int) -> str | None:
    """Start time of a process in clock ticks (field 22 of /proc/PID/stat) with the boot's id; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else f"{boot}:{fields[19]}"
