"""Writes a rank's part of a checkpoint while the rank trains: `python -m trainpkg.runtime.checkpoints.scribe MEMORY`.

A process of its own: a thread would take the interpreter from the training loop, or, with less claim to the processors,
hold it while it waits for one. It reads orders from stdin, the bytes from memory that it shares with the rank (the
descriptor MEMORY), and answers on stdout: JSON, a line each. Standard library only. It ends with its rank.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainpkg.runtime import manifest
from trainpkg.runtime.checkpoints import retention

LEAST_CLAIM = 19  # nice
_PR_SET_PDEATHSIG = 1


def main(memory_fd: int) -> None:
    """Until stdin ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(LEAST_CLAIM)
    scores: retention.Scores = {}
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {"files": {}}
        try:
            if "publish" in order:
                retention.publish(retention.Publication(**order["publish"]), scores)
            else:
                # Not closed by hand: while an error is on its way, parts of it are still looked at.
                memory = memoryview(mmap.mmap(memory_fd, order["size"]))
                answer["files"] = write_part(Path(order["folder"]), order["texts"], order["shards"], chunks(memory))
        except OSError as error:
            answer |= {"errno": error.errno, "text": str(error)}
        print(json.dumps(answer | {"ended_s": time.monotonic()}), flush=True)


def write_part(folder: Path, texts: Mapping[str, str], shards: str, pieces: Iterable[Any]) -> manifest.Files:
    """A rank's files in `folder`, synced: `texts`, and `shards` from the pieces of its content. OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = manifest.write_summed(folder / shards, pieces)
    for name, text in texts.items():
        manifest.write_synced(folder / name, text)
    return {shards: facts} | manifest.describe(folder, list(texts))


def chunks(whole: memoryview) -> Iterator[memoryview]:
    for begin in range(0, len(whole), manifest.CHUNK):
        yield whole[begin : begin + manifest.CHUNK]


if __name__ == "__main__":
    main(int(sys.argv[1]))
