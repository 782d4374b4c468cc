"""What ended a run: records of how ranks and nodes ended, and which one is the cause, which are its victims.

The first error that anyone sees is seldom the cause: a killed rank says nothing, and its peers complain within
milliseconds. So ends are told apart by what they are. A death by signal, an exception of one's own, an exit before the
work was done, a lost node are causes; a lost peer or a death that we ordered are victims. The earliest cause wins; an
exception inside a collective operation, whose text is not known, counts only where no other cause is.
"""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass, field
from typing import Any

from trainpkg.last_words import exception_line, memory_asked
from trainpkg.launch.head.blame.sentences import sentence

LOST_PEER_STATUS = 3  # with which a rank ends that lost a peer
GATHER_S = 0.5  # victims notice within 15 to 40 ms, so the cause has spoken by then if it ever will
GATHER_MORE_S = 1.5  # as long again when only victims have spoken
MAX_VICTIMS_NAMED = 64

CAUSES = frozenset(
    {"signal", "oom", "exception", "user_error", "early_exit", "exit", "start", "program", "port_taken", "node_lost",
     "node_silent"}
)  # fmt: skip
DOUBTFUL = frozenset({"collective"})  # may be another's death in words that we do not know
OWN_DOING = frozenset(
    {"signal", "oom", "exception", "user_error", "exit", "early_exit", "start", "collective", "no_progress", "wedged"}
)
VICTIMS = frozenset({"lost_peer", "stopped"})
# inferred from what did not happen; only where nobody spoke
LATE_CAUSES = frozenset({"straggler", "init_timeout", "no_progress", "wedged"})


@dataclass(frozen=True)
class Record:
    """How one rank, or one node as a whole (rank None), ended. `time_s` is on the coordinator's clock.

    `part` is what of the node ended where it was a program of its own; `counts` whether steps are known at all.
    """

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
    memory: dict[str, Any] = field(default_factory=dict)  # what its cgroup told after an end that it had no word on
    part: str = ""
    counts: bool = True

    @property
    def who(self) -> str:
        if self.node < 0:  # nobody in particular
            return ""
        place = f"node {self.node} ({self.host})"
        if self.part:
            return f"the {self.part} of {place}"
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
    stacks: tuple[dict[str, Any], ...] = ()  # where the ranks were that nobody could hear any more
    memory: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def repeats(self, earlier: Failure | None) -> bool:
        """Whether this is the earlier failure again: the same end of the same rank at the very same step.

        An exception may come from another rank: a bug strikes all of them at once, and any may be the first to say so.
        """
        if earlier is None or self.kind not in OWN_DOING:
            return False
        names = ["kind", "step", "type"]
        names += [] if self.kind == "exception" else ["rank", "node", "exit_code", "signal"]
        return all(getattr(self, name) == getattr(earlier, name) for name in names)

    @property
    def from_outside(self) -> bool:
        """Whether somebody may have done it by hand: then a second time proves little."""
        return self.kind == "signal" and self.signal in (signal.SIGKILL, signal.SIGTERM)


def rank_record(ended: dict[str, Any], node: int, host: str, time_s: float) -> Record | None:
    """The record of a rank from its node's message, or None when it ended as it should.

    The message has rank, exit_code, signal (both None while it lives), step, done (its verdict), exception, stopped
    (we had ordered its end), last_lines, lost_peer (the line of its log that says so), memory (see Record).
    """
    raised = ended.get("exception") or {}
    kind = _kind_of(ended, raised)
    if kind is None:
        return None
    error_type, message = str(raised.get("error_type", "")), str(raised.get("message", ""))
    if not raised and kind in ("oom", "lost_peer"):  # a program that does not report: its log is all that it said
        said = ended.get("lost_peer") or exception_line("\n".join(ended.get("last_lines") or ()))
        error_type, message = said.partition(":")[0].strip(), said
    return Record(
        kind=kind,
        node=node,
        host=host,
        time_s=time_s,
        rank=ended["rank"],
        step=raised.get("step") if raised.get("step") is not None else ended.get("step"),
        exit_code=ended.get("exit_code"),
        signal=ended.get("signal"),
        type=error_type,
        message=message,
        traceback=str(raised.get("traceback", "")),
        last_lines=tuple(ended.get("last_lines") or ()),
        memory=ended.get("memory") or {},
    )


def _kind_of(ended: dict[str, Any], raised: dict[str, Any]) -> str | None:
    code, signum = ended.get("exit_code"), ended.get("signal")
    if raised:  # what it said comes before how it ended: gloo may abort a victim that already spoke
        if raised.get("victim"):
            return "lost_peer"
        if raised.get("user_error"):
            return "user_error"
        if memory_asked(str(raised.get("error_type", "")), str(raised.get("message", ""))) is not None:
            return "oom"
        return "collective" if raised.get("collective") else "exception"
    if ended.get("done") and signum is None and code in (0, 75):
        return None
    if ended.get("stopped"):
        return "stopped"
    if signum is not None:
        return _kind_of_death(ended, signum)
    if code in (0, 75):
        return "early_exit"
    if code == LOST_PEER_STATUS or ended.get("lost_peer"):
        return "lost_peer"
    said = exception_line("\n".join(ended.get("last_lines") or ()))
    return "oom" if said and memory_asked(said.partition(":")[0], said) is not None else "exit"


def _kind_of_death(ended: dict[str, Any], signum: int) -> str:
    if signum == signal.SIGKILL and (ended.get("memory") or {}).get("oom_kills"):
        return "oom"
    if signum == signal.SIGABRT and ended.get("lost_peer"):  # torch's watchdog aborts whom a peer keeps waiting
        return "lost_peer"
    return "signal"


def find_cause(records: list[Record]) -> Failure:
    """The failure that a set of records tells of: the earliest cause, else the earliest inference, else victim."""
    assert records
    for kinds in (CAUSES, DOUBTFUL, LATE_CAUSES, VICTIMS):
        candidates = [record for record in records if record.kind in kinds]
        if candidates:
            break
    cause = min(candidates, key=lambda record: record.time_s)
    others = sorted((record for record in records if record is not cause), key=lambda record: record.time_s)
    lost = sum(other.kind in VICTIMS - {"stopped"} for other in others)
    also = [other for other in others if cause.kind in CAUSES - {"start"} and other.kind in CAUSES]
    return Failure(
        **{name: getattr(cause, name) for name in _COPIED},
        victims=tuple(
            {"rank": r.rank, "node": r.node, "host": r.host, "kind": r.kind, "step": r.step, "message": r.message[:200]}
            for r in others[:MAX_VICTIMS_NAMED]
        ),
        sentence=sentence(cause, lost, also),
        status=status_of(cause),
    )


_COPIED = ("host", "node", "rank", "step", "exit_code", "signal", "kind", "message", "traceback", "last_lines", "type",
           "memory")  # fmt: skip


def status_of(cause: Record) -> int:
    """The exit status that tells of the cause, as a shell has it."""
    if cause.kind == "user_error":
        return 2
    if cause.signal is not None and cause.kind in ("signal", "oom", "node_lost", "start", "program"):
        return 128 + cause.signal
    return cause.exit_code if cause.exit_code and cause.exit_code not in (75, 78) else 1
