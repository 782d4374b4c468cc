"""docs/security.md: what a training run listens at, and nothing else."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]
LISTENING = "0A"


def listeners(pids: list[int]) -> Counter[int]:
    """TCP sockets that listen, by process."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    inodes = {words[9] for words in lines if words[3] == LISTENING}
    found: Counter[int] = Counter()
    for pid in pids:
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                target = str(entry.readlink())
                found[pid] += target.startswith("socket:[") and target[8:-1] in inodes
    return +found


def test_the_roll_call_the_store_and_a_socket_per_rank_of_gloo_and_no_other(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def look(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        metrics = launch.folder / "metrics.jsonl"
        launch.wait_for(lambda: metrics.exists() and metrics.read_text(), "a first record")
        found = listeners(launch.processes())
        seen.append([found.pop(process.pid, 0), *sorted(found.values())])
        process.send_signal(signal.SIGINT)

    keys = {"nodes": 2, "gpus_per_node": 2}
    more = {"config": {"train": {"max_steps": 100_000}}}
    ended = Launch(tmp_path / "run", keys, {"entry": None, "preload": None}, more=more, limit_s=200).run(look)
    assert ended.status == 130, ended.output
    # `launch`: the roll call; three ranks: gloo; rank 0: gloo and torch's store; nodes and fork servers: nothing
    assert seen == [[1, 1, 1, 1, 2]]
