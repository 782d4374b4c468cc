"""One roll call of 1,024 nodes from four processes, while a hundred strangers hold connections and say nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.unit.test_rollcall import SECRET, make_facts, make_spec
from trainpkg.launch import wire
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.head.meeting.rollcall import Coordinator
from trainpkg.launch.node.call import call_head, parse_head
from trainpkg.launch.spec import Spec, Timeouts

NODES, STRANGERS, PROCESSES = 1024, 100, 4
TIMEOUTS = Timeouts(rollcall_s=60.0, start_s=60.0)


def crowd_spec() -> Spec:
    return make_spec(NODES, timeouts=TIMEOUTS)


@pytest.fixture
def many_files() -> Iterator[None]:
    """As `launch` raises it for itself: one connection per node."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, old[1]), max(4096, old[1])))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, old)


@pytest.mark.timeout(90)
def test_all_who_should_are_admitted_in_seconds(many_files: None) -> None:
    said: list[str] = []

    async def run() -> tuple[list[NodeFacts], float]:
        coordinator = Coordinator(crowd_spec(), SECRET, said.append)
        head = await coordinator.listen()
        port = parse_head(head)[1]
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(STRANGERS)]
        size = NODES // PROCESSES
        callers = [
            subprocess.Popen([sys.executable, "-m", "tests.distributed.test_crowd", head, str(k * size), str(size)])
            for k in range(PROCESSES)
        ]
        try:
            met = await coordinator.meet(lambda: "")
            return met, time.monotonic() - (coordinator.waiting.first_s or 0.0)
        finally:
            for caller in callers:
                caller.kill()
                caller.wait()
            for _, writer in strangers:
                writer.close()
            await coordinator.close()

    met, seconds = asyncio.run(run())
    print(f"{len(met)} nodes in {seconds:.2f} s from the first answer, beside {STRANGERS} silent strangers")
    assert [node.index for node in met] == list(range(NODES))
    assert seconds < 20  # 1 s on a quiet machine


async def call(head: str, first: int, number: int) -> None:
    """Nodes `first` to `first + number - 1`, at once, as a node calls."""

    async def one(index: int) -> wire.Message | None:
        reader, writer = await call_head(head, SECRET, crowd_spec(), lambda text: None)
        writer.write(wire.encode({"type": "facts", **dataclasses.asdict(make_facts(index))}))
        while (message := await wire.receive(reader)) is not None:
            if message["type"] == "bye":
                break
        return None

    await asyncio.gather(*(one(index) for index in range(first, first + number)))


if __name__ == "__main__":
    asyncio.run(call(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
