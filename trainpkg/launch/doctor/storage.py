"""Folders: results_dir as all nodes must see it, the temporary folder, and the clock of the file system."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, OK, WARN, Row, size

GIB = 1024**3
RESULTS_WARN, RESULTS_BAD, TMP_WARN, TMP_BAD = 20 * GIB, GIB, GIB, 64 * 1024**2
MAX_SKEW_S = 2.0
MAX_SOCKET_PATH = 90  # a Unix socket's path has 107 bytes; names below the folder want some
SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "glusterfs", "orangefs", "pvfs2", "cifs", "afs")
LOCAL = ("tmpfs", "overlay", "ext4", "xfs", "btrfs", "ext3", "zfs", "ramfs", "squashfs")


def results(machine: Machine, wanted: Wanted) -> list[Row]:
    """The folder of all results: there, writable, on which file system, with room, and doing what locks rely on."""
    if wanted.results_dir is None:
        return [Row("results_dir", "not known: no config was read")]
    folder = Path(os.path.abspath(wanted.results_dir))  # noqa: PTH100  # no resolving: a link may be the shared name
    there = next(path for path in (folder, *folder.parents) if path.exists())
    text = str(folder) + ("" if there == folder else f" (to be made below {there})")
    if not os.access(there, os.W_OK | os.X_OK):
        fix = f"Set results_dir in config/config.yaml to a folder that you may write, or: chmod u+w {there}"
        return [Row("results_dir", f"{text}: not writable", BAD, fix)]
    kind = file_system(machine, there)
    shared = kind.startswith(SHARED) or (kind.startswith("fuse") and kind not in ("fuse.overlayfs", "fuseblk"))
    local = kind in LOCAL and machine.which("sbatch") is not None and not wanted.on_node
    verdict = WARN if local and not shared else OK
    fix = "On a cluster set results_dir to a folder that all nodes see; this file system is usually one machine's own."
    rows = [Row("results_dir", f"{text} on {kind}", verdict, fix)]
    rows.append(_room("results_dir, room", machine, there, RESULTS_BAD, RESULTS_WARN, "results_dir in config.yaml"))
    return [*rows, *_behaviour(machine, there)]


def temporary(machine: Machine, wanted: Wanted) -> Row:
    """TMPDIR: compilers and sockets need it; on a node it may name a folder that only the login node has."""
    name = machine.env.get("TMPDIR", "/tmp")
    folder = machine.path(name)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        fix = (
            "Unset TMPDIR or let it name a folder that exists on every node, such as /tmp (launch.env: {TMPDIR: /tmp})."
        )
        return Row("TMPDIR", f"{name}: no folder that can be written", WARN if not wanted.on_node else BAD, fix)
    if len(name) > MAX_SOCKET_PATH:
        fix = "Let TMPDIR name a shorter path: sockets of data loader workers and compilers lie in it."
        return Row("TMPDIR", f"{name}: {len(name)} characters", WARN, fix)
    return _room(f"TMPDIR {name}", machine, folder, TMP_BAD, TMP_WARN, "TMPDIR")


def file_system(machine: Machine, folder: Path) -> str:
    """The type of the file system that holds a folder, from the table of mounts."""
    path = str(folder.resolve())
    best, kind = "", "an unknown file system"
    for line in machine.read("/proc/self/mountinfo").splitlines():
        before, _, behind = line.partition(" - ")
        fields, more = before.split(), behind.split()
        if len(fields) < 5 or not more:
            continue
        mount = fields[4].replace("\\040", " ")
        if len(mount) >= len(best) and (path == mount or path.startswith(mount.rstrip("/") + "/")):
            best, kind = mount, more[0]
    return kind


def _room(check: str, machine: Machine, folder: Path, bad: int, warn: int, key: str) -> Row:
    found = machine.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    text = f"{size(free)} free of {size(found.f_blocks * found.f_frsize)}"
    verdict = BAD if free < bad else WARN if free < warn else OK
    if found.f_files:  # some file systems count none
        text += f", {found.f_favail:,} files left"
        verdict = BAD if found.f_favail < 100 else WARN if found.f_favail < 10_000 and verdict == OK else verdict
    return Row(check, text, verdict, f"Make room, or let {key} name another file system (a quota counts as full too).")


def _behaviour(machine: Machine, folder: Path) -> list[Row]:
    """Try what the run directory's lock and the checkpoints do; and what time the file system says that it is."""
    check = "results_dir, behaviour"
    fix = "Choose a file system with POSIX semantics for results_dir: the run's lock and its checkpoints rely on this."
    try:
        trial = Path(tempfile.mkdtemp(prefix=".doctor-", dir=folder))
    except OSError as error:
        return [Row(check, f"no folder can be made: {error.strerror}", BAD, fix)]
    try:
        problem = _try_files(trial)
        before = machine.clock()
        (trial / "clock").touch()
        skew = (trial / "clock").stat().st_mtime - (before + machine.clock()) / 2
    except OSError as error:
        return [Row(check, f"{error.strerror} ({Path(str(error.filename)).name})", BAD, fix)]
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    rows = [Row(check, problem or "exclusive creation, rename and fsync work", BAD if problem else OK, fix)]
    return [*rows, clock_row("clock, file system", skew, "the file system's")]


def _try_files(folder: Path) -> str:
    """Why a lock or a checkpoint would fail here, or nothing."""
    first, second = folder / "first", folder / "second"
    os.close(os.open(first, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        os.close(os.open(first, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        return "a file was created twice in spite of O_EXCL"
    except FileExistsError:
        pass
    with second.open("wb") as file:
        file.write(b"new")
        file.flush()
        os.fsync(file.fileno())
    second.replace(first)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return "" if first.read_bytes() == b"new" and not second.exists() else "a rename did not replace the old file"


def clock_row(check: str, skew: float, whose: str) -> Row:
    """Two clocks. Snakemake decides by file times what is done, and locks by beats who lives."""
    fix = "Start a time service on both machines (chronyc tracking; timedatectl set-ntp true)."
    if abs(skew) <= MAX_SKEW_S:
        return Row(check, f"{whose} clock is within {MAX_SKEW_S:g} s of this one")
    return Row(check, f"{whose} clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this one", WARN, fix)
