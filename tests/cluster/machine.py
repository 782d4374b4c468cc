"""What a lab asks of the machine it runs on, and what it leaves there: one directory, as long as the lab lives."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

PARENT = Path("/var/tmp")
PREFIX = "trainpkg-lab-"
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "ip", "nft", "unshare", "nsenter", "setpriv")
INSTALL = "apt-get install slurmctld slurmd slurm-client munge iproute2 nftables util-linux"
SLURM_CONF_DIR = Path("/etc/slurm")
CHECKOUT = Path(__file__).resolve().parents[2]


def missing() -> str:
    """What this machine lacks for a lab, as one line; empty if nothing."""
    if os.geteuid() != 0:
        return "the Slurm lab needs root"
    path = with_sbin(os.environ.get("PATH", ""))
    if absent := [program for program in PROGRAMS if not shutil.which(program, path=path)]:
        return f"the Slurm lab needs {', '.join(absent)}: {INSTALL}"
    if not SLURM_CONF_DIR.is_dir():  # the lab's is bound over it, within its own mounts
        return f"the Slurm lab needs Slurm packages that read {SLURM_CONF_DIR}: {INSTALL}"
    probe = ["unshare", "--mount", "--net", "--pid", "--fork", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"the Slurm lab may not make namespaces here: {done.stderr.strip()}" if done.returncode else ""


def make_work_dir() -> tuple[Path, int]:
    """A new directory, and a descriptor of its lock: while anyone holds it (PID 1 of the lab does), the lab lives.

    First removes the directories of labs whose PID 1 was killed before it could; all else of them went with it.
    """
    parent = os.open(PARENT, os.O_RDONLY)
    fcntl.flock(parent, fcntl.LOCK_EX)  # one at a time: a directory that is not locked yet is not left over
    try:
        for path in PARENT.glob(f"{PREFIX}*"):
            try:
                os.close(lock_directory(path))
            except OSError:
                continue  # alive, or just gone
            shutil.rmtree(path, ignore_errors=True)
        work_dir = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PARENT))
        return work_dir, lock_directory(work_dir)
    finally:
        os.close(parent)


def lock_directory(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def clean_environment(work_dir: Path) -> dict[str, str]:
    """The caller's, less what an outer Slurm job or cluster says of itself."""
    kept = {key: value for key, value in os.environ.items() if not re.match("SLURM|SBATCH|SRUN|SALLOC|MUNGE", key)}
    return kept | {"PATH": with_sbin(kept.get("PATH", "")), "TRAINPKG_LAB": str(work_dir)}


def with_sbin(path: str) -> str:
    return ":".join(dict.fromkeys([*path.split(":"), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]))


def own_tmp(shared: Iterable[Path]) -> list[str]:
    """Lines of shell that give a mount namespace an empty /tmp but for the directories of `shared` that lie there."""
    kept = [str(path) for path in sorted(shared) if path.is_relative_to("/tmp")]
    lines = ["keep=$(mktemp -d /dev/shm/keep.XXXX)"] if kept else []
    for number, path in enumerate(kept):
        lines += [f"mkdir $keep/{number}", f"mount --rbind '{path}' $keep/{number}"]
    lines.append("mount -t tmpfs -o mode=1777 tmp /tmp")
    for number, path in enumerate(kept):
        lines += [f"mkdir -p '{path}'", f"mount --move $keep/{number} '{path}'"]
    return [*lines, "rm -r $keep"] if kept else lines


def pmix_link(work_dir: Path) -> list[str]:
    """Lines of shell that let Slurm's `--mpi=pmix` find its library.

    Debian 12's plugin asks for `libpmix.so`, a name that only libpmix-dev brings, with a dozen packages after it.
    """
    lines = []
    for number, library in enumerate(sorted(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so.2"))):
        if not library.with_name("libpmix.so").exists():
            copy = work_dir / f"pmix{number}"
            lines += [f"cp -a {library.parent} {copy}", f"ln -s libpmix.so.2 {copy}/libpmix.so"]
            lines.append(f"mount --bind {copy} {library.parent}")
    return lines
