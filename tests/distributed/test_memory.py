"""A rank that runs out of memory, by the kernel's hand in a real memory cgroup where root may make one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.launching import Launch
from trainpkg.launch import memory

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]
LIMIT_MB = 300


@pytest.fixture
def limited() -> Iterator[Path | None]:
    """A memory cgroup of 300 MB below this process's own; None where the machine lets nobody make one."""
    here = memory.find()
    folder = here.folders[0] / f"trainpkg-test-{os.getpid()}" if here.folders else None
    made = None
    if folder is not None:
        name = "memory.limit_in_bytes" if here.version == 1 else "memory.max"
        with contextlib.suppress(OSError):
            folder.mkdir()
            made = folder
            (folder / name).write_text(str(LIMIT_MB << 20))
    usable = made is not None and memory.read(memory.Place((made,), "", here.version)).limit_mb == LIMIT_MB
    yield made if usable else None
    if made is not None:
        end = time.monotonic() + 10
        while made.exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                made.rmdir()
            time.sleep(0.1)


@pytest.mark.failure("F096")
def test_a_rank_that_takes_too_much_is_told_from_one_that_was_killed_by_hand(
    tmp_path: Path, limited: Path | None
) -> None:
    environment = {"TEST_STEPS": "2000", "TEST_BAD": "eat:1:4", "TEST_EAT_MB": "100000" if limited else "100"}
    join = ["sh", "-c", f'echo $$ > {limited}/cgroup.procs && exec "$@"', "sh"] if limited else []
    launch = Launch(tmp_path / "run", {"gpus_per_node": 2, "stop_grace_s": 1.0}, environment=environment, prefix=join)
    failed = launch.run()
    told = failed.file("0/failure.json")
    assert (told["kind"], told["rank"]) == ("oom", 1), failed.output
    if limited:
        assert failed.status == 137
        assert "rank 1 on node 0 (sim0) was killed by the kernel at step 3: out of memory (cgroup " in failed.last_line
        assert f"limit {LIMIT_MB} MB, peak " in failed.last_line
        assert told["memory"]["oom_kills"] >= 1
    else:
        assert failed.status == 1
        assert "rank 1 on node 0 (sim0) ran out of memory at step 4 (MemoryError" in failed.last_line
