"""In a smoke test, once the nodes have met: ask each how it is, compare, write it down, and end where a row is bad.

The nodes answer while they import torch, so that this costs no time; no rank has started yet. nodes.json in the launch
directory goes into the smoke test's result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from trainpkg.launch import network
from trainpkg.launch.doctor import nodes, rows
from trainpkg.launch.doctor.rows import OK, Row
from trainpkg.launch.facts import NodeFacts, RollCallError
from trainpkg.launch.head.meeting.rollcall import Coordinator
from trainpkg.launch.spec import Spec

NODES_JSON = "nodes.json"
SAID_ALREADY = ("own name", "name service")  # by the roll call


async def examine(coordinator: Coordinator, spec: Spec, met: list[NodeFacts], say: Callable[[str], None]) -> None:
    """Raises RollCallError with the bad rows and their fixes. Warnings are said and end nothing."""
    world_size = sum(node.num_ranks for node in met)
    question = {"type": "examine", "generation": 0, "world_size": world_size, "head": head_address(met)}
    coordinator.tell_all(question | {"clock": time.time()})
    answers = await coordinator.collect("examined", 0, list(coordinator.members))
    hosts = {node.index: node.host for node in met}
    reports = {hosts[index]: rows.from_json(answers[index]["rows"]) for index in sorted(answers)}
    found = nodes.merged(reports)
    table = rows.table(found)
    tree = {
        "nodes": {host: rows.as_json(some) for host, some in reports.items()},
        "differences": rows.as_json(nodes.differences(reports)),
        "table": table,
    }
    (Path(spec.launch_dir) / NODES_JSON).write_text(json.dumps(tree, indent=1) + "\n")
    if odd := [row for row in found if row.verdict != OK and not row.check.startswith(SAID_ALREADY)]:
        say(rows.table(odd))
    if bad := nodes.sentence(found):
        write_failure(spec, found, table, bad)
        raise RollCallError(f"smoke test failed at 'nodes': {bad}")


def head_address(met: list[NodeFacts]) -> str:
    """The address of the first node that others most likely reach."""
    return next((address for address in met[0].addresses if not network.is_loopback(address)), "")


def write_failure(spec: Spec, found: list[Row], table: str, problem: str) -> None:
    """The result beside the launch's other files, as a smoke test that fails later leaves it."""
    check = {"check": "nodes", "ok": False, "seconds": 0.0, "text": "", "problem": problem, "rows": rows.as_json(found)}
    path = Path(spec.launch_dir) / f"{Path(spec.out).stem}.failed.json"
    tree = {"ok": False, "run": spec.run, "num_nodes": spec.num_nodes, "checks": [check]}
    path.write_text(json.dumps(tree, indent=1) + "\n")
    path.with_suffix(".txt").write_text(f"{table}\n")
