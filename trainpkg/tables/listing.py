"""What lies in a run's directory: names, sizes and times of the files that the tables are made from. Opens none.

The signature over them says whether a run has to be read again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

READ = frozenset({"config.yaml", "train.json", "finished.json", "evaluation.json", "metrics.jsonl", "lock"})
OF_ATTEMPT = frozenset({"attempt.json"})
OF_GENERATION = frozenset({"plan.json", "failure.json"})
MAX_DIGITS = 9


@dataclass(frozen=True)
class Listing:
    """Files of one run that count, by their path below its directory: (bytes, time of the last change in unix ns)."""

    path: str
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    generations: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Attempt -> its generations, both in order."""

    @property
    def newest_s(self) -> float:
        """The last change of any of the files, in unix seconds; 0 without any."""
        return max((mtime_ns for _, mtime_ns in self.files.values()), default=0) / 1e9

    def signature(self) -> str:
        """Equal as long as no file came, went, or changed its size or time."""
        text = repr((sorted(self.files.items()), sorted(self.generations.items())))
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def directories(path: str) -> list[str]:
    """Names of the directories in `path`, in order; those with a leading dot (`.old`) are no runs."""
    return sorted(entry.name for entry in _entries(path) if not entry.name.startswith(".") and entry.is_dir())


def look(path: str) -> Listing | None:
    """None where `path` is no directory."""
    if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises where a parent may not be searched)
        return None
    files: dict[str, tuple[int, int]] = {}
    has_launches = False
    for entry in _entries(path):
        if entry.name in READ:
            files[entry.name] = _size_and_time(entry)
        has_launches = has_launches or entry.name == "launch"
    generations = {}
    for attempt, where in _numbered(f"{path}/launch") if has_launches else ():
        files.update(_wanted(where, OF_ATTEMPT, f"launch/{attempt}/"))
        inner = list(_numbered(where))
        for generation, there in inner:
            files.update(_wanted(there, OF_GENERATION, f"launch/{attempt}/{generation}/"))
        generations[attempt] = tuple(number for number, _ in inner)
    return Listing(path, files, generations)


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def _numbered(path: str) -> Iterator[tuple[int, str]]:
    """Entries whose names are whole numbers, in their order: number and path."""
    names = [entry.name for entry in _entries(path)]
    # `007` is another name than `7`, and no attempt of ours.
    numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS)
    return ((number, f"{path}/{number}") for number in numbers)


def _wanted(path: str, names: frozenset[str], prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    return ((prefix + entry.name, _size_and_time(entry)) for entry in _entries(path) if entry.name in names)


def _size_and_time(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        found = entry.stat()
    except OSError:  # gone meanwhile, or a link to nowhere: reading will tell
        return -1, -1
    return found.st_size, found.st_mtime_ns
