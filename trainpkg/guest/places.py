"""Where each rank says that it is, held against what the others say: pure, values in, a layout or a sentence out."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch.ranges import RankRange, check_ranges

MAX_NAMED = 8


@dataclass(frozen=True)
class Place:
    """One rank's word on itself. `machine` is equal on one machine, `devices` on ranks that are shown the same GPUs."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    node_rank: int | None
    host: str
    pid: int
    machine: str
    devices: str
    versions: Mapping[str, str]
    code_hash: str
    fingerprint: str

    @property
    def who(self) -> str:
        return f"rank {self.rank} on {self.host} (process {self.pid})"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Layout:
    """Nodes in the order of their lowest ranks: `node_of` and `num_here` by rank, `hosts` and `counts` by node."""

    node_of: list[int]
    num_here: list[int]
    hosts: list[str]
    counts: list[int]
    in_blocks: bool  # each node has consecutive ranks


def lay_out(places: Sequence[Place]) -> Layout:
    """The layout of ranks 0, 1, ... in this order.

    Raises:
        UserError: they contradict each other; the ranks are named.
    """
    _require_equal("WORLD_SIZE", places, [place.world_size for place in places])
    _require_equal("the run's fingerprint (its config)", places, [place.fingerprint for place in places])
    for name in ("python", "torch", "trainpkg"):
        _require_equal(f"the version of {name}", places, [place.versions.get(name, "unknown") for place in places])
    _require_equal("the code of trainpkg", places, [place.code_hash for place in places])
    _refuse_shared_devices(places)
    nodes: dict[tuple[str, int | None], list[Place]] = defaultdict(list)
    for place in places:
        nodes[place.machine or place.host, place.node_rank].append(place)
    node_of, num_here = [0] * len(places), [0] * len(places)
    for index, node in enumerate(nodes.values()):
        for place in node:
            node_of[place.rank], num_here[place.rank] = index, len(node)
            if place.local_world_size not in (None, len(node)):
                raise UserError(
                    f"{place.who} says that its node has {place.local_world_size} ranks (LOCAL_WORLD_SIZE), but there "
                    f"are {len(node)}: {_names(node)}"
                )
    ranges = [[place.rank for place in node] for node in nodes.values()]
    in_blocks = all(ranks == list(range(ranks[0], ranks[0] + len(ranks))) for ranks in ranges)
    hosts = [node[0].host for node in nodes.values()]
    counts = [len(node) for node in nodes.values()]
    return Layout(node_of, num_here, _distinct(hosts), counts, in_blocks)


def twice(first: Place, second: Place, come: Sequence[Place]) -> UserError:
    """Two processes say that they are one rank; where node indices were given as ranks, that is said."""
    ranges = {}
    for place in [*come, first, second]:
        if place.local_world_size is not None:
            begin = place.rank - place.local_rank
            ranges[place.machine or place.host] = RankRange(place.host, begin, place.local_world_size)
    try:
        check_ranges(list(ranges.values()))
        clash = ""
    except UserError as error:
        clash = f". {error}"
    return UserError(
        f"two processes say that they are rank {first.rank} (RANK): {first.host}, process {first.pid}, and "
        f"{second.host}, process {second.pid}{clash}"
    )


def missing(come: Mapping[int, Place], world_size: int, timeout_s: float) -> UserError:
    """Ranks have not come in time."""
    absent = [f"rank {rank}" for rank in range(world_size) if rank not in come]
    more = f" and {len(absent) - MAX_NAMED} more" if len(absent) > MAX_NAMED else ""
    return UserError(
        f"{', '.join(absent[:MAX_NAMED])}{more} of {world_size} (WORLD_SIZE) did not come within {timeout_s:g} s "
        f"(launch.init_timeout_s); there are {_names(list(come.values()))}. Has the launcher started them, and what do "
        "they say?"
    )


def _require_equal(what: str, places: Sequence[Place], values: Sequence[object]) -> None:
    for place, value in zip(places, values, strict=True):
        if value != values[0]:
            raise UserError(f"{what} is {values[0]!r} on {places[0].who}, but {value!r} on {place.who}")


def _refuse_shared_devices(places: Sequence[Place]) -> None:
    """F052: two ranks that take one GPU."""
    taken: dict[tuple[str, str, int], Place] = {}
    for place in places:
        other = taken.setdefault((place.machine or place.host, place.devices, place.local_rank), place)
        if place.devices and other is not place:
            raise UserError(
                f"{other.who} and {place.who} are both local rank {place.local_rank} and are shown the same GPUs "
                f"({place.devices}): both would take the same one. LOCAL_RANK must differ within a node"
            )


def _distinct(hosts: list[str]) -> list[str]:
    return [f"{host}-{index}" if hosts.count(host) > 1 else host for index, host in enumerate(hosts)]


def _names(places: Sequence[Place]) -> str:
    more = f" and {len(places) - MAX_NAMED} more" if len(places) > MAX_NAMED else ""
    return ", ".join(place.who for place in places[:MAX_NAMED]) + more or "none"
