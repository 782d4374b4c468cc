"""The doctor on all nodes of a job: what one node reports, and what differs between them.

A node answers while its ranks' imports go on. Its report is one line on the wire, so it is cut to fit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from trainpkg.launch.doctor import checks, storage
from trainpkg.launch.doctor.checks import Examination
from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, OK, Row, as_json, from_json
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.spec import Spec
from trainpkg.launch.wire import MAX_LINE

LIMIT_S = 12.0  # well below the coordinator's patience
MAX_TEXT, MAX_REPORT = 500, MAX_LINE - 4096
EQUAL_FIX = "Make it equal on all nodes, or leave the odd ones out (slurm.exclude)."
UNSET = "not set"
MARK, PIECE = "doctor-report", 800  # srun passes lines of up to 1024 bytes on whole

Report = dict[str, list[Row]]  # by host, in node order


async def report(spec: Spec, facts: NodeFacts, question: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """This node's answer to the coordinator's question. Raises nothing and takes at most LIMIT_S."""
    clock = storage.clock_row("clock, first node", float(question["clock"]) - time.time(), "the first node's")
    under_way = Examination(Machine(env=env), wanted_of(spec, facts, question), checks.ON_NODE)
    end = time.monotonic() + LIMIT_S
    while not under_way.done and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return {"generation": question["generation"], "rows": fitting([*under_way.rows(), clock])}


def wanted_of(spec: Spec, facts: NodeFacts, question: Mapping[str, Any]) -> Wanted:
    """What this job expects of this node."""
    on_slurm = spec.where == "slurm"
    return Wanted(
        on_node=True,
        num_cpus=spec.cpus_per_task if on_slurm else 0,
        num_ranks=facts.num_ranks,
        world_size=int(question["world_size"]),
        hosts=tuple(spec.hosts) if on_slurm else (),
        head=str(question["head"]) if on_slurm else "",
        device=facts.device,
        backend=spec.backend,
        preset=spec.preset,
        env=spec.env,
    )


def fitting(rows: Sequence[Row], limit: int = MAX_REPORT) -> list[dict[str, Any]]:
    """The rows as JSON of at most `limit` bytes: texts cut, then rows that are ok left out from the end."""
    cut = [
        dataclasses.replace(row, found=row.found[:MAX_TEXT], fix="" if row.verdict == OK else row.fix[:MAX_TEXT])
        for row in rows
    ]
    while len(json.dumps(as_json(cut))) > limit:
        least = min(range(len(cut)), key=lambda index: (cut[index].verdict != OK, -index))
        del cut[least]
    return as_json(cut)


def differences(reports: Report) -> list[Row]:
    """A row for each thing that must be equal on all nodes and is not. A setting that a node lacks counts as unset."""
    values: dict[str, dict[str, str]] = defaultdict(dict)
    first: dict[str, Row] = {}
    for host, rows in reports.items():
        for row in rows:
            if row.same is not None:
                values[row.check][host] = row.same
                first.setdefault(row.check, row)
    found = []
    for check, by_host in values.items():
        if check.isupper():  # a variable
            by_host = {host: by_host.get(host, UNSET) for host in reports}
        groups: dict[str, list[str]] = defaultdict(list)
        for host, value in by_host.items():
            groups[value].append(host)
        if len(groups) > 1:
            told = [f"{value} on {_hosts(some)}" for value, some in sorted(groups.items(), key=lambda g: len(g[1]))]
            row = first[check]
            found.append(Row(f"{check} differs", "; ".join(told), row.differing, row.fix or EQUAL_FIX))
    return found


def merged(reports: Report) -> list[Row]:
    """All rows of all nodes: one where all say the same, else one per group of nodes that do."""
    groups: dict[str, dict[tuple[str, str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for host, rows in reports.items():
        for row in rows:
            groups[row.check][row.found, row.verdict, row.fix].append(host)
    found = []
    for check, by_text in groups.items():
        for (text, verdict, fix), hosts in by_text.items():
            name = check if len(hosts) == len(reports) else f"{check} on {_hosts(hosts)}"
            found.append(Row(name, text, verdict, fix))
    return found + differences(reports)


def sentence(rows: Sequence[Row]) -> str:
    """The bad rows with their fixes, for the verdict; empty where none is bad."""
    bad = [f"{row.check}: {row.found}. {row.fix}" for row in rows if row.verdict == BAD]
    return "; ".join(bad)


def own_report(wanted: Wanted) -> str:
    """This node's report, for `doctor --nodes`, in lines so short that srun lets none of another task in between."""
    host = os.environ.get("SLURMD_NODENAME") or Machine().hostname
    wanted = dataclasses.replace(wanted, on_node=True)
    rows = checks.examine(Machine(), wanted, checks.ON_NODE, LIMIT_S)
    text, index = json.dumps({"host": host, "rows": fitting(rows)}), os.environ.get("SLURM_NODEID", "0")
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    return "\n".join(f"{MARK} {index} {number} {piece}" for number, piece in enumerate(pieces))


def gathered(told: str) -> Report:
    """The reports in what srun printed, in node order. Raises ValueError where one is not whole."""
    pieces: dict[int, dict[int, str]] = defaultdict(dict)
    for index, number, piece in re.findall(rf"^{MARK} (\d+) (\d+) (.*)$", told, re.MULTILINE):
        pieces[int(index)][int(number)] = piece
    trees = [json.loads("".join(text for _, text in sorted(pieces[index].items()))) for index in sorted(pieces)]
    return {tree["host"]: from_json(tree["rows"]) for tree in trees}


def _hosts(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
