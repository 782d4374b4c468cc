"""Plan and roll call over the number of nodes: 16 to 16,384 planned, 16 to 1,024 simulated ones that call at once.

Plan: from host list and counts to a finished plan, and its JSON. Whole command: `trainpkg plan` for
that many hosts. Roll call: from the first node's answer to the last one's admission, all on this machine, called from
four processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.commands import Commands, output_of, python
from benchmarks.harness import Figure, Part, Plot, Row, Scale, interleaved

SIZES, MEETINGS, CALLERS = (16, 64, 256, 1024, 4096, 16_384), (16, 64, 256, 1024), 4
SECRET = "b" * 64
GPUS = 8


PLAN = f"""
import json, sys, time
from trainpkg.launch.plan import make_plan
from trainpkg.launch.slurm.grammar import expand_hosts
began = time.perf_counter()
made = make_plan(expand_hosts(sys.argv[1]), {GPUS}, job_id="7")
planned = time.perf_counter()
made.to_json()
print(json.dumps({{"plan_s": planned - began, "json_s": time.perf_counter() - planned}}))
"""


def plan(num_nodes: int) -> Mapping[str, float]:
    """In a process of its own, as it is in use: one that holds Snakemake and torch collects garbage for longer."""
    found: Mapping[str, float] = json.loads(output_of(python("-c", PLAN, f"node[00001-{num_nodes:05d}]")))
    return found


def command(num_nodes: int) -> Mapping[str, float]:
    hosts = f"--hosts=node[00001-{num_nodes:05d}]"
    with Commands([python("-m", "trainpkg", "plan", hosts, "--gpus-per-node", str(GPUS), "--json")]) as started:
        return {"plan_s": started.wait(120)}


def spec(num_nodes: int) -> Any:
    from trainpkg.launch.spec import Spec, Timeouts

    return Spec(
        stage="train", run="r", run_dir="/r", out="/r/o", config_path="/r/c", attempt=1, num_nodes=num_nodes,
        hosts=[f"n{index + 1}" for index in range(num_nodes)], where="local", launch_dir="/r/launch/1",
        timeouts=Timeouts(rollcall_s=120.0, start_s=120.0),
    )  # fmt: skip


def roll_call(num_nodes: int) -> Mapping[str, float]:
    from trainpkg.launch.head.meeting.rollcall import Coordinator
    from trainpkg.launch.node.call import parse_head

    async def meet() -> float:
        coordinator = Coordinator(spec(num_nodes), SECRET, lambda text: None)
        head = await coordinator.listen()
        assert parse_head(head)
        size = num_nodes // CALLERS
        callers = [
            subprocess.Popen([sys.executable, "-m", "benchmarks.plan", head, str(k * size), str(size), str(num_nodes)])
            for k in range(CALLERS)
        ]
        try:
            met = await coordinator.meet(lambda: "")
            assert len(met) == num_nodes
            return time.monotonic() - (coordinator.waiting.first_s or 0.0)
        finally:
            for caller in callers:
                caller.kill()
                caller.wait()
            await coordinator.close()

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(4096, before[1])), before[1]))  # as launch does
    return {"rollcall_s": asyncio.run(meet())}


async def call(head: str, first: int, number: int, num_nodes: int) -> None:
    """Nodes `first` to `first + number - 1`, at once, as a node calls."""
    from trainpkg.launch import wire
    from trainpkg.launch.facts import NodeFacts
    from trainpkg.launch.node.call import call_head

    async def one(index: int) -> None:
        reader, writer = await call_head(head, SECRET, spec(num_nodes), lambda text: None)
        facts = NodeFacts(
            index=index, host=f"n{index + 1}", pid=100 + index, num_ranks=2, device="cpu", addresses=["127.0.0.1"],
            versions={"python": "3.11", "torch": "2.13", "trainpkg": "1"}, clock_unix_s=time.time(),
        )  # fmt: skip
        writer.write(wire.encode({"type": "facts", **dataclasses.asdict(facts)}))
        while (message := await wire.receive(reader)) is not None:
            if message["type"] == "bye":
                break

    await asyncio.gather(*(one(index) for index in range(first, first + number)))


def measure(scale: Scale) -> Iterator[Row]:
    for size in SIZES[:1] if scale.tiny else SIZES:
        ways = {"plan": partial(plan, size), "trainpkg plan": partial(command, size)}
        if size in MEETINGS:
            ways["roll call"] = partial(roll_call, size)
        yield from interleaved(f"{size:,} nodes", ways, scale.repetitions, size=size, warm_up=False)


PART = Part(
    "plan",
    "Plan and roll call",
    "plan below 0.1 s at 16,384 nodes; roll call below 3 s at 1,024",
    "plan",
    (
        Figure("plan_s", "plan", "s", None),
        Figure("json_s", "as JSON", "s", None),
        Figure("rollcall_s", "roll call", "s", None),
    ),
    measure,
    (Plot("growth", "plan_s", sizes="nodes"), Plot("growth", "rollcall_s", sizes="nodes")),
)

if __name__ == "__main__":
    asyncio.run(call(sys.argv[1], *map(int, sys.argv[2:])))
