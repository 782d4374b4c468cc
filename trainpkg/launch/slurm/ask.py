"""What Slurm's controller says about nodes, asked with a time limit. Where it says nothing, nothing is known."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

TIMEOUT_S = 5.0
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")


def node_states(hosts: Sequence[str], timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """`DOWN* (Not responding, slurm@2026-11-30T02:38:10)` per host, as `scontrol show node` has it."""
    command = ["scontrol", "show", "node", ",".join(hosts), "--oneliner"]
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_node_states(asked.stdout)


def parse_node_states(text: str) -> dict[str, str]:
    """State and reason by node name, from `scontrol show node --oneliner`. A reason may hold blanks and `=`."""
    found = {}
    for line in text.splitlines():
        fields = split_fields(line)
        if name := fields.get("NodeName"):
            reason = fields.get("Reason", "").replace(" [", ", ").rstrip("]")
            found[name] = fields.get("State", "unknown") + (f" ({reason})" if reason else "")
    return found


def split_fields(line: str) -> dict[str, str]:
    """`A=1 B=two words C=3` as a mapping: a field goes on until the next word that looks like the name of one."""
    begins = list(_FIELD.finditer(line))
    ends = [*(match.start() for match in begins), len(line)][1:]
    return {match[1]: line[match.end() : end].strip() for match, end in zip(begins, ends, strict=True)}


def is_down(state: str) -> bool:
    """Whether Slurm itself holds the node for gone: no launcher will start there."""
    return bool(re.match(r"[A-Z+]*(DOWN|NOT_RESPONDING|POWERED_DOWN|POWERING_DOWN|REBOOT)|[A-Z+]*\*", state))


def describe(states: Mapping[str, str], host: str) -> str:
    """What Slurm says of this host, as part of a sentence; empty when it says nothing."""
    state = states.get(host)
    return f"Slurm says {state}" if state else ""
