"""How much memory a process may have and whether the kernel ended anything for it: memory cgroups, v1 and v2.

Read before and after: a rank that SIGKILL ended says nothing itself. Knows nothing of ranks. Nothing here raises where
the kernel tells nothing, in a container without cgroups for instance.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60  # v1 writes a number near 2**63 where there is none


@dataclass(frozen=True)
class Place:
    """The memory cgroup of a process: its folder, those above it up to the mount, and its name."""

    folders: tuple[Path, ...] = ()  # its own first
    name: str = ""
    version: int = 0


@dataclass(frozen=True)
class Reading:
    """What the kernel says. None where it does not. Limit and peak are of the cgroup that has the lowest limit."""

    cgroup: str = ""
    oom_kills: int | None = None
    limit_mb: int | None = None
    peak_mb: int | None = None
    host_oom_kills: int | None = None

    def since(self, before: Reading) -> Reading:
        """This reading with the counters of what came after an earlier one."""

        def more(now: int | None, then: int | None) -> int | None:
            return None if now is None else now - (then or 0)

        return dataclasses.replace(
            self,
            oom_kills=more(self.oom_kills, before.oom_kills),
            host_oom_kills=more(self.host_oom_kills, before.host_oom_kills),
        )


def find(pid: int | str = "self", proc: Path = Path("/proc")) -> Place:
    """The memory cgroup of a living process; an empty place where it has none."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        return Place()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    first = next((path for names, path in paths.items() if "memory" in names.split(",")), None)
    version, name = (1, first) if first is not None else (2, paths.get("", ""))
    for line in mounts:
        left, _, right = line.partition(" - ")
        root, mount = left.split()[3:5]
        kind, _, options = right.split()[:3]
        if kind == "cgroup2" if version == 2 else kind == "cgroup" and "memory" in options.split(","):
            inside = name.removeprefix(root) if root != "/" else name
            top = Path(mount)
            own = top / inside.strip("/")
            above = [folder for folder in own.parents if folder == top or top in folder.parents]
            if own.is_dir():  # else a bind mount of another part of the tree
                return Place((own, *above), name, version)
    return Place()


def read(place: Place, vmstat: Path = Path("/proc/vmstat")) -> Reading:
    """What the kernel says of this cgroup now."""
    host = _table(vmstat).get("oom_kill")
    if not place.folders:
        return Reading(host_oom_kills=host)
    events = "memory.oom_control" if place.version == 1 else "memory.events"
    kills = _table(place.folders[0] / events).get("oom_kill")
    v1, v2 = ("memory.limit_in_bytes", "memory.max_usage_in_bytes"), ("memory.max", "memory.peak")
    names = v1 if place.version == 1 else v2
    limits = [(_number(folder / names[0]), folder) for folder in place.folders]
    known = [(limit, folder) for limit, folder in limits if limit is not None and limit < _NO_LIMIT]
    limit, folder = min(known, key=lambda one: one[0]) if known else (None, place.folders[0])
    peak = _number(folder / names[1])
    mb = [None if number is None else number >> 20 for number in (limit, peak)]  # Slurm's MB are 2**20 bytes
    return Reading(place.name, kills, mb[0], mb[1], host)


def _table(path: Path) -> dict[str, int]:
    """A file of `name number` lines; empty where it cannot be read."""
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {word[0]: int(word[1]) for word in words if len(word) == 2 and word[1].isdigit()}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
