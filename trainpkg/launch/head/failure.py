"""What ended a run: records of how ranks and nodes ended, and which one is the cause, which are its victims.

The first error that anyone sees is seldom the cause: a killed rank says nothing, and its peers complain within
milliseconds. So ends are told apart by what they are. A death by signal, an exception of one's own, an exit before the
work was done, a lost node are causes; a lost peer or a death that we ordered are victims. The earliest cause wins.
"""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass, field
from typing import Any

LOST_PEER_STATUS = 3  # with which a rank ends that lost a peer
GATHER_S = 0.5  # victims notice within 15 to 40 ms, so the cause has spoken by then if it ever will
GATHER_MORE_S = 1.5  # as long again when only victims have spoken
MAX_VICTIMS_NAMED = 64

CAUSES = frozenset({"signal", "exception", "user_error", "early_exit", "exit", "start", "node_lost", "node_silent"})
VICTIMS = frozenset({"lost_peer", "stopped"})
LATE_CAUSES = frozenset({"straggler", "init_timeout"})  # inferred from what did not happen; only where nobody spoke


@dataclass(frozen=True)
class Record:
    """How one rank, or one node as a whole (rank None), ended. `time_s` is on the coordinator's clock."""

    kind: str
    node: int
    host: str
    time_s: float
    rank: int | None = None
    step: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    type: str = ""
    message: str = ""
    traceback: str = ""
    last_lines: tuple[str, ...] = ()

    @property
    def who(self) -> str:
        place = f"node {self.node} ({self.host})"
        return place if self.rank is None else f"rank {self.rank} on {place}"


@dataclass(frozen=True)
class Failure:
    """The cause of a failure, its victims, and the sentence to print last."""

    host: str
    node: int
    rank: int | None
    step: int | None
    exit_code: int | None
    signal: int | None
    kind: str
    message: str
    traceback: str
    last_lines: tuple[str, ...]
    victims: tuple[dict[str, Any], ...]
    sentence: str
    status: int
    type: str = field(default="")

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def repeats(self, earlier: Failure | None) -> bool:
        """Whether this is the earlier failure again: the same rank's own doing at the very same step."""
        own = ("exception", "user_error", "exit", "early_exit", "start")
        return (
            earlier is not None
            and self.kind in own
            and (self.kind, self.rank, self.node, self.step, self.type, self.exit_code)
            == (earlier.kind, earlier.rank, earlier.node, earlier.step, earlier.type, earlier.exit_code)
        )


def rank_record(ended: dict[str, Any], node: int, host: str, time_s: float) -> Record | None:
    """The record of a rank from its node's message, or None when it ended as it should.

    The message has rank, exit_code, signal (both None while it lives), step, done (its verdict), exception, stopped
    (we had ordered its end), last_lines.
    """
    raised = ended.get("exception") or {}
    kind = _kind_of(ended, raised)
    if kind is None:
        return None
    return Record(
        kind=kind,
        node=node,
        host=host,
        time_s=time_s,
        rank=ended["rank"],
        step=raised.get("step") if raised.get("step") is not None else ended.get("step"),
        exit_code=ended.get("exit_code"),
        signal=ended.get("signal"),
        type=str(raised.get("error_type", "")),
        message=str(raised.get("message", "")),
        traceback=str(raised.get("traceback", "")),
        last_lines=tuple(ended.get("last_lines") or ()),
    )


def _kind_of(ended: dict[str, Any], raised: dict[str, Any]) -> str | None:
    code, signum = ended.get("exit_code"), ended.get("signal")
    if raised:  # what it said comes before how it ended: gloo may abort a victim that already spoke
        if raised.get("victim"):
            return "lost_peer"
        return "user_error" if raised.get("user_error") else "exception"
    if ended.get("done") and signum is None and code in (0, 75):
        return None
    if ended.get("stopped"):
        return "stopped"
    if signum is not None:
        return "signal"
    if code in (0, 75):
        return "early_exit"
    return "lost_peer" if code == LOST_PEER_STATUS else "exit"


def find_cause(records: list[Record]) -> Failure:
    """The failure that a set of records tells of: the earliest cause, else the earliest inference, else victim."""
    assert records
    for kinds in (CAUSES, LATE_CAUSES, VICTIMS):
        candidates = [record for record in records if record.kind in kinds]
        if candidates:
            break
    cause = min(candidates, key=lambda record: record.time_s)
    others = [record for record in records if record is not cause]
    return Failure(
        **{name: getattr(cause, name) for name in _COPIED},
        victims=tuple(
            {"rank": r.rank, "node": r.node, "host": r.host, "kind": r.kind, "step": r.step, "message": r.message[:200]}
            for r in sorted(others, key=lambda r: r.time_s)[:MAX_VICTIMS_NAMED]
        ),
        sentence=sentence(cause, others),
        status=status_of(cause),
    )


_COPIED = ("host", "node", "rank", "step", "exit_code", "signal", "kind", "message", "traceback", "last_lines", "type")


def status_of(cause: Record) -> int:
    """The exit status that tells of the cause, as a shell has it."""
    if cause.kind == "user_error":
        return 2
    if cause.signal is not None and cause.kind in ("signal", "node_lost", "start"):
        return 128 + cause.signal
    return cause.exit_code if cause.exit_code and cause.exit_code not in (75, 78) else 1


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def sentence(cause: Record, others: list[Record]) -> str:
    """Who, where, when, what; then how many fell with it."""
    lost = sum(other.kind == "lost_peer" for other in others)
    tail = f"; {lost} other rank{'s' if lost > 1 else ''} lost {'their' if lost > 1 else 'its'} peer" if lost else ""
    return f"{cause.who} {_what(cause)}{tail}"


def _what(cause: Record) -> str:
    when = "before its first step" if cause.step is None else f"at step {cause.step}"
    text = cause.message.strip().splitlines()[0][:400] if cause.message.strip() else ""
    said = f"; its last line: {cause.last_lines[-1][:200]}" if cause.last_lines else "; it wrote nothing"
    if cause.kind == "signal":
        assert cause.signal is not None
        hint = " (by the kernel when memory runs out, or by hand)" if cause.signal == signal.SIGKILL else ""
        return f"was killed by {signal_name(cause.signal)} {when}{hint}"
    if cause.kind in ("exception", "user_error"):
        return f"raised {cause.type} {when}: {text}"
    if cause.kind == "early_exit":
        return f"exited with status {cause.exit_code} {when}, before it had said that it was done"
    if cause.kind == "exit":
        return f"exited with status {cause.exit_code} {when} without a word{said}"
    if cause.kind == "lost_peer":
        return f"lost a peer {when}, and no rank was seen to fail first: {text or 'no message'}"
    if cause.kind == "stopped":
        return f"was stopped {when}"
    return text
