"""What lies in a run's directory: names, sizes and times of the files that the tables are made from. Opens none.

The signature over them says whether a run has to be read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

READ = frozenset({"config.yaml", "train.json", "finished.json", "evaluation.json", "metrics.jsonl", "lock"})
OF_ATTEMPT = frozenset({"attempt.json"})
OF_GENERATION = frozenset({"plan.json", "failure.json"})
MAX_DIGITS = 9
FileState = tuple[int, int]
"""Bytes (-1 for a directory), and time of the last change in unix ns."""
GONE: FileState = (-2, -2)


@dataclass(frozen=True)
class Listing:
    """Files of one run that count, by their path below its directory, and the directories that hold them."""

    path: str
    files: Mapping[str, FileState] = field(default_factory=dict)
    directories: Mapping[str, FileState] = field(default_factory=dict)
    generations: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Attempt -> its generations, both in order."""

    @property
    def newest_s(self) -> float:
        """The last change of anything here, in unix seconds."""
        return max(its[1] for its in (*self.files.values(), *self.directories.values())) / 1e9

    @cached_property
    def signature(self) -> str:
        """`size time path` of each, by which `is_unchanged` knows it again."""
        found = sorted({**self.directories, **self.files}.items())
        return "\n".join(f"{size} {time_ns} {name}" for name, (size, time_ns) in found)


def is_unchanged(path: str, signature: str) -> bool:
    """Whether nothing came, went, or changed its size or time since `look(path)` had this signature."""
    for line in signature.split("\n"):
        size, time_ns, name = line.split(" ", 2)
        found = _state(f"{path}/{name}")
        if found[1] != int(time_ns) or found[0] != int(size):
            return False
    return True


def directories(path: str) -> list[str]:
    """Names of the directories in `path`, in order; those with a leading dot (`.old`) are no runs."""
    return sorted(entry.name for entry in _entries(path) if not entry.name.startswith(".") and entry.is_dir())


def look(path: str) -> Listing | None:
    """None where `path` is no directory."""
    if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises where a parent may not be searched)
        return None
    # Before their entries: what comes meanwhile shows in the next look.
    held = {"": _state(path)}
    names = {entry.name for entry in _entries(path)}
    files = {name: _state(f"{path}/{name}") for name in names & READ}
    generations = {}
    for attempt in _numbered(path, "launch", held) if "launch" in names else ():
        where = f"launch/{attempt}"
        generations[attempt] = tuple(_numbered(path, where, held))
        files.update(_wanted(path, where, OF_ATTEMPT))
        for generation in generations[attempt]:
            there = f"{where}/{generation}"
            held[there] = _state(f"{path}/{there}")
            files.update(_wanted(path, there, OF_GENERATION))
    return Listing(path, files, held, generations)


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def _numbered(path: str, folder: str, held: dict[str, FileState]) -> list[int]:
    """Entries of a folder whose names are whole numbers, in their order; `held` gets the folder."""
    held[folder] = _state(f"{path}/{folder}")
    names = [entry.name for entry in _entries(f"{path}/{folder}")]
    # `007` is another name than `7`, and no attempt of ours.
    usual = [name for name in names if name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS]
    return sorted(int(name) for name in usual if name == str(int(name)))


def _wanted(path: str, folder: str, names: frozenset[str]) -> Iterator[tuple[str, FileState]]:
    for entry in _entries(f"{path}/{folder}"):
        if entry.name in names:
            yield f"{folder}/{entry.name}", _state(f"{path}/{folder}/{entry.name}")


def _state(path: str) -> FileState:
    try:
        found = os.stat(path)  # noqa: PTH116  (hundreds of thousands of them)
    except OSError:  # gone meanwhile, or a link to nowhere: reading will tell
        return GONE
    return (-1 if found.st_mode & 0o170000 == 0o040000 else found.st_size), found.st_mtime_ns
