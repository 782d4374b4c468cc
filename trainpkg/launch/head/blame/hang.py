"""Who keeps the others waiting, from Python stacks, step counters and process states. Pure.

All but one rank of a hanging run wait for that one inside a collective operation, so theirs are the stacks that are
alike. What follows from that is likely, not certain.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainpkg.launch.facts import MAX_NAMED
from trainpkg.launch.head.blame.failure import Record
from trainpkg.launch.stacks import Stack

# Frames in which a rank waits for others: collective operations, the way into the process group, and a backward pass
# that reduces gradients.
_WAITING = (
    "distributed/distributed_c10d.py",
    "distributed/c10d_logger.py",
    "distributed/rendezvous.py",
    "connect (runtime/distributed.py",
    "_engine_run_backward (",
)
_INNER = 4
_STATES = {"T": "its process is stopped", "t": "a debugger holds it", "D": "it waits in the kernel (a file system?)"}


@dataclass(frozen=True)
class Late:
    """Something has not happened in time. `ranks`: those that did not do it, or may be why; `sure`: each did not.

    `says` is of one rank ("did not join ..."), `nobody` the whole sentence where stacks tell no rank from the others;
    empty: all of them are blamed then.
    """

    kind: str
    ranks: tuple[int, ...]
    says: str
    nobody: str = ""
    sure: bool = False


def waits(stack: Stack) -> bool:
    """Whether a rank waits for others in a collective operation."""
    return any(known in frame for frame in stack.frames[:_INNER] for known in _WAITING)


def culprits(stacks: Mapping[int, Stack], steps: Mapping[int, int | None]) -> list[int]:
    """The ranks that the others seem to wait for; empty where nothing tells them apart."""
    stuck = [rank for rank in sorted(stacks) if stacks[rank].state in _STATES]
    apart = [rank for rank in sorted(stacks) if stacks[rank].frames and not waits(stacks[rank])]
    known = {rank: steps.get(rank) or 0 for rank in sorted(stacks)}
    behind = [rank for rank in known if known[rank] == min(known.values())]
    places = Counter(stack.frames[:_INNER] for stack in stacks.values()).most_common(1)
    common = places[0][0] if places and 2 * places[0][1] > len(stacks) else None
    elsewhere = [rank for rank in sorted(stacks) if common is not None and stacks[rank].frames[:_INNER] != common]
    return next((found for found in (stuck, apart, behind, elsewhere) if 0 < len(found) < len(stacks)), [])


def where(stack: Stack | None) -> str:
    """`it is in sleep (a.py:7), called from step (train.py:9)`, or why nothing is known."""
    if stack is None:
        return "where it is could not be asked"
    if stack.state in _STATES:
        return _STATES[stack.state]
    if not stack.frames:
        return "it wrote no Python stack"
    own = next((f for f in stack.frames[1:] if not any(known in f for known in _WAITING)), "")
    return f"it is in {stack.frames[0]}" + (f", called from {own}" if own else "")


def grouped(stacks: Mapping[int, Stack]) -> tuple[dict[str, Any], ...]:
    """[{ranks, frames, state}]: ranks in the same place together."""
    groups: dict[Stack, list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(stacks[rank], []).append(rank)
    return tuple({"ranks": ranks} | dataclasses.asdict(stack) for stack, ranks in groups.items())


def records(
    late: Late,
    stacks: Mapping[int, Stack],
    steps: Mapping[int, int | None],
    places: Mapping[int, tuple[int, str]],
    now_s: float,
) -> list[Record]:
    """Whom to blame, first the one that the verdict speaks of. `places`: (node, host) of each rank."""
    asked = {rank: stack for rank, stack in stacks.items() if rank in late.ranks}
    blamed = list(late.ranks) if late.sure or len(late.ranks) == 1 else culprits(asked, steps)
    blamed = blamed or ([] if late.nobody else list(late.ranks))
    waiting = [rank for rank in sorted(stacks) if rank not in blamed]
    rest = f"; the {len(waiting)} other(s) wait: of the first, {where(stacks[waiting[0]])}" if waiting else ""
    if not blamed:
        alike = f"; nothing tells the ranks apart: of the first, {where(stacks[waiting[0]])}" if waiting else ""
        step = max((step for step in steps.values() if step is not None), default=None)
        return [Record(late.kind, -1, "", now_s, step=step, message=late.nobody + alike)]
    also = f" (nor did {named(blamed[1:], places)})" if blamed[1:] and late.sure else ""
    also = also or (f" (it, and {named(blamed[1:], places)})" if blamed[1:] else "")
    found = []
    for rank in blamed:
        node, host = places[rank]
        first = also + "; " if rank == blamed[0] else "; "
        text = f"{late.says}{first}{where(stacks.get(rank))}{rest}"
        found.append(Record(late.kind, node, host, now_s, rank=rank, step=steps.get(rank), message=text))
    return found


def named(ranks: list[int], places: Mapping[int, tuple[int, str]]) -> str:
    """`rank 2 on node 1 (n2), rank 3 on node 1 (n2) and 7 more`."""
    told = [f"rank {rank} on node {places[rank][0]} ({places[rank][1]})" for rank in ranks[:MAX_NAMED]]
    return ", ".join(told) + (f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else "")
