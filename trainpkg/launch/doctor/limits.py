"""Limits of this process and node: shared memory, open files, locked memory, CPUs."""

from __future__ import annotations

import resource

from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, OK, WARN, Row, size

MIB = 1024**2
SHM_BAD, SHM_WARN = 128 * MIB, 1024 * MIB  # containers get 64 MiB unless told otherwise
MEMLOCK_ENOUGH = 64 * MIB  # queue pairs of a few cards; RDMA buffers want no limit at all


def shared_memory(machine: Machine, wanted: Wanted) -> Row:
    """/dev/shm, where data loader workers, NCCL and gloo put what ranks of a node share."""
    check = "/dev/shm"
    try:
        found = machine.statvfs(machine.path("/dev/shm"))
    except OSError as error:
        return Row(check, error.strerror or str(error), BAD, "Mount a tmpfs there (in a container: --ipc=host).")
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    verdict = BAD if free < SHM_BAD else WARN if free < max(SHM_WARN, wanted.num_ranks * SHM_BAD) else OK
    full = total >= 4 * max(free, 1) and total >= SHM_WARN
    fix = (
        "Remove what ended jobs left in /dev/shm (ls -l /dev/shm)."
        if full
        else "Give a container --ipc=host or --shm-size=8g; on the node itself: mount -o remount,size=50% /dev/shm."
    )
    return Row(check, f"{size(total)}, {size(free)} free", verdict, fix, size(total))


def open_files(machine: Machine, wanted: Wanted) -> Row:
    """RLIMIT_NOFILE against a connection per peer and group of each rank, and the files of its workers."""
    soft, hard = machine.limit(resource.RLIMIT_NOFILE)
    needed = 512 + 8 * wanted.world_size
    usable = soft if wanted.on_node else hard  # `launch` raises the one to the other
    enough = usable == resource.RLIM_INFINITY or usable >= needed
    return Row(
        "open files",
        f"soft limit {_number(soft)}, hard limit {_number(hard)}, about {needed} needed for {wanted.world_size} ranks",
        OK if enough else BAD,
        "Raise LimitNOFILE in slurmd's systemd unit (and in /etc/security/limits.conf for shells), then restart it.",
        _number(soft),
    )


def locked_memory(machine: Machine, wanted: Wanted) -> Row:
    """RLIMIT_MEMLOCK: InfiniBand registers memory by locking it; without such devices any limit does."""
    soft, _ = machine.limit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if soft == resource.RLIM_INFINITY else size(soft)
    devices = machine.names_in("/sys/class/infiniband")
    verdict = OK
    if devices and soft != resource.RLIM_INFINITY:
        # the limit of a login shell says nothing of a step's, which comes from slurmd
        verdict = BAD if soft < MEMLOCK_ENOUGH and wanted.on_node else WARN
    reason = f", for the InfiniBand devices {', '.join(devices)}" if devices else ", no InfiniBand device here"
    fix = (
        "Set LimitMEMLOCK=infinity in slurmd's systemd unit and restart slurmd (limits.conf does not reach steps); "
        "in a container: --ulimit memlock=-1."
    )
    return Row("locked memory", text + reason, verdict, fix, text)


def cpus(machine: Machine, wanted: Wanted) -> Row:
    """CPU affinity against what was asked of Slurm: since 22.05 srun does not inherit --cpus-per-task."""
    have, online = machine.num_cpus, machine.num_cpus_online
    text = f"{have} of {online} in this process's mask"
    if not wanted.num_cpus or not wanted.on_node:
        return Row("CPUs", text)
    verdict = OK
    if have < wanted.num_cpus:
        verdict = BAD if have < online else WARN
    fix = (
        "Give srun --cpus-per-task itself (launch.srun_args must not change it), or --cpu-bind=none."
        if have < online
        else "Correct CPUs= of this node in slurm.conf: it promises more than there are."
    )
    return Row("CPUs", f"{text}, {wanted.num_cpus} asked of Slurm", verdict, fix)


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
