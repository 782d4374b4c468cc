"""Where the ranks of a launch were: hosts, ranks per node, the address where they meet, from its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainpkg.tables.files.records import clean
from trainpkg.tables.rows.frames import text, whole

MAX_HOSTS = 8


def layout(plan: Mapping[str, Any]) -> dict[str, str | None]:
    """Columns `hosts` (`n1, n2, … n64`), `ranks_per_node` (`4`, or `4 x3, 2` where nodes differ) and `master`."""
    nodes = plan.get("nodes")
    nodes = [node for node in nodes if isinstance(node, Mapping)] if isinstance(nodes, list) else []
    hosts = [str(node.get("host")) for node in nodes]
    more = f", … {hosts[-1]}" if len(hosts) > MAX_HOSTS else ""
    address, port = text(plan.get("master_addr")), whole(plan.get("master_port"))
    return {
        "hosts": clean(", ".join(hosts[:MAX_HOSTS]) + more) or None,
        "ranks_per_node": _counts([whole(node.get("num_ranks")) for node in nodes]),
        "master": f"{address}:{port}" if address and port else None,
    }


def _counts(counts: Sequence[int | None]) -> str | None:
    if not counts or None in counts:
        return None
    groups: list[tuple[int | None, int]] = []
    for count in counts:
        if groups and groups[-1][0] == count:
            groups[-1] = (count, groups[-1][1] + 1)
        else:
            groups.append((count, 1))
    if len(groups) == 1:
        return str(counts[0])
    return ", ".join(f"{count} x{times}" if times > 1 else str(count) for count, times in groups)
