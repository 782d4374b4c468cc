"""What is said of a failure: who, where, when, what, how it is known. Records in, sentences out."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from trainpkg.last_words import exception_line, memory_asked

if TYPE_CHECKING:
    from trainpkg.launch.head.blame.failure import Record


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def sentence(cause: Record, lost: int, also: list[Record]) -> str:
    """Of the cause, then how many ranks lost their peer, and who else failed by itself at about the same time."""
    tail = f"; {lost} other rank{'s' if lost > 1 else ''} lost {'their' if lost > 1 else 'its'} peer" if lost else ""
    if also:
        more = f" (and {len(also) - 1} more)" if len(also) > 1 else ""
        tail += f"; {also[0].who}{more} failed too, {also[0].time_s - cause.time_s:.2f} s later: {_short(also[0])}"
    return f"{cause.who} {_what(cause)}{tail}".strip()


def _short(record: Record) -> str:
    if record.signal is not None:
        return signal_name(record.signal)
    return record.type or (f"status {record.exit_code}" if record.exit_code is not None else record.kind)


def _what(cause: Record) -> str:
    when = f" at step {cause.step}" if cause.step is not None else " before its first step" if cause.counts else ""
    text = cause.message.strip().splitlines()[0][:600] if cause.message.strip() else ""
    said = f"; its last line: {cause.last_lines[-1][:200]}" if cause.last_lines else "; it wrote nothing"
    if cause.kind == "oom" and cause.signal is not None:
        return f"was killed by the kernel{when}: out of memory ({memory_text(cause.memory)})"
    if cause.kind == "oom":
        asked = memory_asked(cause.type, text)
        return f"ran out of memory{when} ({cause.type}{f', {asked} asked for' if asked else ''}): {text}"
    if cause.kind == "signal":
        assert cause.signal is not None
        hint = f", not by us: {_no_oom(cause.memory)}" if cause.signal == signal.SIGKILL else ""
        return f"was killed by {signal_name(cause.signal)}{when}{hint}"
    if cause.kind in ("exception", "user_error", "collective"):
        where = " in a collective operation" if cause.kind == "collective" else ""
        return f"raised {cause.type}{when}{where}: {text}{_worker_killed(cause)}"
    if cause.kind == "early_exit":
        return f"exited with status {cause.exit_code}{when}, before it had said that it was done"
    if cause.kind == "exit":
        raised = exception_line("\n".join(cause.last_lines))
        how = f": {raised[:400]}" if raised else f"{' without a word' if cause.counts else ''}{said}"
        return f"exited with status {cause.exit_code}{when}{how}{_worker_killed(cause)}"
    if cause.kind == "program":
        how = f"was killed by {signal_name(cause.signal)}" if cause.signal else f"ended with status {cause.exit_code}"
        return f"{how} {text}{said}"
    if cause.kind == "lost_peer":
        return f"lost a peer{when}, and no rank was seen to fail first: {text or 'no message'}"
    if cause.kind == "stopped":
        return f"was stopped{when}"
    return text


def memory_text(memory: dict[str, Any]) -> str:
    """`cgroup /slurm/job_7 limit 4000 MB, peak 3999 MB`."""
    limit, peak = memory.get("limit_mb"), memory.get("peak_mb")
    known = f"limit {limit} MB" if limit is not None else "no limit"
    return f"cgroup {memory.get('cgroup')} {known}" + (f", peak {peak} MB" if peak is not None else "")


def _no_oom(memory: dict[str, Any]) -> str:
    """What is known where no OOM kill of its cgroup was counted."""
    if memory.get("oom_kills") is not None:
        return f"no sign that memory ran out ({memory_text(memory)}, no OOM kill counted)"
    if memory.get("host_oom_kills"):
        return f"the kernel ended {memory['host_oom_kills']} process(es) of that host for want of memory meanwhile"
    return "whether memory ran out cannot be told (no memory cgroup can be read)"


def _worker_killed(cause: Record) -> str:
    """A rank outlives a helper of its own that the kernel ends, and then fails for want of it."""
    if not (kills := cause.memory.get("oom_kills")):
        return ""
    return f"; the kernel ended {kills} process(es) beside it: out of memory ({memory_text(cause.memory)})"
