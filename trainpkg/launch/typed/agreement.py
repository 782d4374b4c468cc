"""Whether what was typed on another machine fits what was typed on node 0. Pure: values in, a sentence out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch.ranges import RankRange, check_ranges
from trainpkg.launch.typed.command import Typed


def misfit(own: Typed, own_host: str, asked: Mapping[str, Any]) -> str:
    """Why a node that says this cannot take part in the launch of `own`, or nothing. `asked` came over the wire."""
    who = f"{asked.get('host')} (process {asked.get('pid')})"
    index = asked.get("node_rank")
    if asked.get("num_nodes") != own.num_nodes:
        return (
            f"--num-nodes is {own.num_nodes} on node 0 ({own_host}), but {asked.get('num_nodes')} on {who}, which says "
            f"that it is node {index}. Type the same on every machine"
        )
    if not isinstance(index, int) or not 0 <= index < own.num_nodes:
        return f"{who} says that it is node {index}, but the nodes are 0 to {own.num_nodes - 1}"
    if index == 0:
        return (
            f"two machines say that they are node 0: {own_host}, which holds {own.host} port {own.port}, and {who}. "
            "Each machine needs a --node-rank of its own"
        )
    if asked.get("stage") != own.stage or asked.get("run") not in (None, own.run):
        return (
            f"node 0 ({own_host}) was told {own.stage} of run {own.run!r}, but node {index}, {who}, "
            f"{asked.get('stage')} of run {asked.get('run')!r}"
        )
    return _gpus_misfit(own, own_host, index, who, asked.get("gpus_per_node"))


def _gpus_misfit(own: Typed, own_host: str, index: int, who: str, said: Any) -> str:
    """Each machine counts its ranks from its own `--gpus-per-node`: different ones make ranges that overlap or gap."""
    mine = None if own.gpus_per_node is None else list(own.gpus_per_node)
    if said == mine:
        return ""
    told = f"--gpus-per-node is {_spelled(mine)} on node 0 ({own_host}), but {_spelled(said)} on node {index}, {who}"
    if not (mine and isinstance(said, list) and all(isinstance(count, int) for count in said)):
        return f"{told}. Type the same on every machine"
    here = RankRange(f"node {index} by its own", sum(said[:index]), said[index])
    others = [RankRange(f"node {k}", sum(mine[:k]), mine[k]) for k in range(len(mine)) if k != index]
    try:
        check_ranges([here, *others])
        clash = ""
    except UserError as error:
        clash = f": {error}"
    return f"{told}{clash}. Type the same on every machine; nodes that differ as a list, such as --gpus-per-node 8,4"


def _spelled(counts: Any) -> str:
    if not counts:
        return "left out"
    return str(counts[0]) if len(set(counts)) == 1 else ",".join(map(str, counts))
