"""A directory of files that is whole or not there: fsync, manifest of sizes and checksums, publication by one rename.

The checksum is CRC-32: it finds any damage within four bytes, other damage but for one case in 2^32, at the speed of a
disk; SHA-256 took longer than writing. It proves nothing against intent. Standard library only; knows nothing of torch
or of what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainpkg.errors import UserError

MANIFEST = "manifest.json"
FORMAT = 2  # of the directory as a whole
CHUNK = 1 << 20  # bytes
Files = dict[str, dict[str, int]]


def write_summed(path: Path, pieces: Iterable[Any]) -> dict[str, int]:
    """Write and fsync a new file, piece by piece (bytes, memoryviews); its size and checksum, taken on the way."""
    size = checksum = 0
    with path.open("wb") as stream:
        for piece in pieces:
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return {"bytes": size, "crc32": checksum}


def describe(root: Path, names: list[str]) -> Files:
    """{name: {bytes, crc32}} of files under `root`."""
    return {name: facts_of(root / name) for name in names}


def facts_of(path: Path) -> dict[str, int]:
    """Size and checksum of a file."""
    size = checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    return {"bytes": size, "crc32": checksum}


def sync_directory(path: Path) -> None:
    """Make renames and new names in `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, text: str) -> None:
    """Write and fsync; a file of this name is replaced in place, so use it on new names only."""
    with path.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def replace_synced(path: Path, text: str) -> None:
    """The file `path` holds either its old or its new content at any instant, also after a power cut."""
    waiting = path.with_name(f".{path.name}.tmp")
    write_synced(waiting, text)
    waiting.replace(path)
    sync_directory(path.parent)


def publish_synced(waiting: Path, path: Path) -> None:
    """Give a finished file its name, once its content would survive a power cut."""
    with waiting.open("r+b") as stream:
        os.fsync(stream.fileno())
    waiting.replace(path)
    sync_directory(path.parent)


def write_manifest(root: Path, files: Files, **facts: Any) -> None:
    """The last file written: without it the directory is partial. Carries a checksum of itself."""
    body = {"format": FORMAT, **facts, "files": dict(sorted(files.items()))}
    write_synced(root / MANIFEST, json.dumps({**body, "checksum": _checksum(body)}, indent=1))
    sync_directory(root)


def read_manifest(root: Path) -> Files:
    """ValueError, with the reason, for a directory that is partial, or whose manifest or sizes are wrong.

    UserError for another format, and where the file system does not let it be read: that says nothing of the content.
    """
    path = root / MANIFEST
    try:
        body = json.loads(path.read_text())
        checksum = body.pop("checksum")
        files: Files = body["files"]
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: the save was interrupted") from None
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    if checksum != _checksum(body):
        raise ValueError(f"{path} was altered: its checksum does not fit its content")
    if body.get("format") != FORMAT:
        raise UserError(
            f"{root} has format {body.get('format')}, this version of trainpkg reads {FORMAT}: go on with the version "
            "that wrote it, or name another run"
        )
    for name, facts in files.items():
        try:
            size = (root / name).stat().st_size
        except FileNotFoundError as error:
            raise ValueError(f"{root / name} is missing ({error.strerror})") from error
        except OSError as error:
            raise _unreadable(root / name, error) from error
        if size != facts["bytes"]:
            raise ValueError(f"{root / name} has {size} bytes, its manifest says {facts['bytes']}")
    return files


def wrong_checksum(root: Path, name: str, facts: dict[str, int]) -> str | None:
    """What is wrong with the content of one file, None if nothing is. UserError where it cannot be read."""
    try:
        found = facts_of(root / name)
    except FileNotFoundError as error:
        return f"{root / name} is missing ({error.strerror})"
    except OSError as error:
        raise _unreadable(root / name, error) from error
    if found != facts:
        return f"{root / name} is damaged: its CRC-32 is {found['crc32']:08x}, its manifest says {facts['crc32']:08x}"
    return None


def _unreadable(path: Path, error: OSError) -> UserError:
    """Not damage: to pass over a checkpoint for a passing fault of the file system would throw training away."""
    return UserError(
        f"{path} cannot be read ({error.strerror or error}), and may be whole: mend the file system or the permissions "
        f"and start again, or delete {path.parent} to do without it"
    )


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
