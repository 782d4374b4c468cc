"""The presets of `launch.preset`: NCCL settings of a kind of network, each with its meaning and whether NCCL reads it.

Data, and its table for config/README.md. Standard library only. When a preset's value loses against others is
launch/node/environment.py's.

Sources: NCCL's user guide, Environment Variables (docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html), for
meanings and defaults; NCCL's sources (src/transport/net_ib, src/graph/paths.cc, src/group.cc) for what is done with a
value; the names stand in the libnccl.so.2 that torch 2.13 ships (see variables.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Setting:
    """One variable. `value` None: it depends on the site, and the preset leaves it alone."""

    name: str
    value: str | None
    meaning: str
    reads: str
    in_smoke: str | None = None


ETHERNET = (
    Setting(
        "NCCL_IB_DISABLE",
        "1",
        "Never InfiniBand or RoCE: nodes talk through TCP sockets, over the interface that the launcher has proven.",
        "yes",
    ),
)

INFINIBAND = (
    Setting(
        "NCCL_IB_DISABLE",
        "0",
        "InfiniBand or RoCE where a node has it. It does not insist: without an adapter NCCL takes sockets.",
        "yes; 0 is its default too",
    ),
    Setting(
        "NCCL_SOCKET_IFNAME",
        "^lo",
        "Where NCCL meets over TCP before it uses InfiniBand: any interface but loopback. Without it the launcher "
        "names, on each node, the one that leads to the first node.",
        "yes",
    ),
    Setting(
        "NCCL_DEBUG",
        "WARN",
        "Warnings in the ranks' logs; INFO, in smoke tests, shows which adapters, rings and transports NCCL chose.",
        "yes",
        in_smoke="INFO",
    ),
    Setting(
        "NCCL_IB_HCA",
        None,
        "The adapters to use, as `mlx5_0:1,mlx5_1:1` (`=` in front: exactly these). Left out: all that are active. To "
        "find: `ibstat`, or `ls /sys/class/infiniband` on a node.",
        "yes",
    ),
    Setting(
        "NCCL_IB_GID_INDEX",
        None,
        "RoCE alone: the row of the port's GID table that has the RoCE v2 address. Left out: NCCL looks for it. To "
        "find: `show_gids`, or /sys/class/infiniband/HCA/ports/1/gid_attrs/types on a node.",
        "yes, on RoCE",
    ),
    Setting(
        "NCCL_IB_TC",
        "106",
        "Traffic class of packets: 106 is DSCP 26 with ECN, which switches of many RoCE networks carry without loss. "
        "Ask the site; a fabric of InfiniBand alone goes by the service level.",
        "yes; its default is 0",
    ),
    Setting(
        "NCCL_IB_TIMEOUT",
        "22",
        "Patience for an acknowledgement: 4.096 us x 2^22 = 17 s, seven times (NCCL_IB_RETRY_CNT). More than a switch "
        "needs to find another route.",
        "yes; its default is 20 (4 s)",
    ),
    Setting(
        "NCCL_NET_GDR_LEVEL",
        "2",
        "How far an adapter may be from a GPU to write into its memory: 2 is the old number of PXB, through PCI "
        "switches but not through the CPU. NCCL prefers the words.",
        "yes; PXB is its default too, but for GPUs that hang on their CPU by C2C",
    ),
    Setting(
        "NCCL_LAUNCH_MODE",
        "GROUP",
        "Communicators of one process start their kernels together.",
        "yes, but it does nothing here: each rank is a process of its own",
    ),
    Setting(
        "NCCL_MIN_NCHANNELS",
        "4",
        "At least so many channels, each a CUDA block: more bandwidth for more of the GPU.",
        "yes",
    ),
)

PRESETS: Mapping[str, tuple[Setting, ...]] = MappingProxyType(
    {"none": (), "ethernet": ETHERNET, "infiniband": INFINIBAND}
)


def settings(preset: str, stage: str) -> dict[str, str]:
    """The variables that a preset sets in a stage; those of the site are left out."""
    chosen = {one.name: one.in_smoke if stage == "smoke" and one.in_smoke else one.value for one in PRESETS[preset]}
    return {name: value for name, value in chosen.items() if value is not None}


def table() -> str:
    """All presets as Markdown."""
    rows = ["| preset | variable | value | does NCCL read it | meaning |", "|---|---|---|---|---|"]
    for preset, some in PRESETS.items():
        for one in some:
            value = "the site's" if one.value is None else f"`{one.value}`"
            value += f", in smoke tests `{one.in_smoke}`" if one.in_smoke else ""
            rows.append(f"| {preset} | `{one.name}` | {value} | {one.reads} | {one.meaning} |")
    return "\n".join(rows)
