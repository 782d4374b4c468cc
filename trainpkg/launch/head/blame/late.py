"""What has not happened in time: imports, first words, joining, a step, the end. Looks at a generation only.

Asked where nobody failed: what follows from silence is weaker than what anyone says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainpkg.launch.facts import MAX_NAMED
from trainpkg.launch.head.blame import hang
from trainpkg.launch.head.blame.hang import Late
from trainpkg.launch.head.blame.watch import SILENT_S

if TYPE_CHECKING:
    from trainpkg.launch.head.blame.generation import Generation

INIT_MARGIN_S = 5.0  # the ranks' own deadline comes first: it knows more
ALONE = "result"  # the phase in which one rank works while the others wait at the end


def find(it: Generation, now_s: float) -> Late | None:
    """What is overdue once the ranks have been told to start, or None."""
    found = _mute(it, now_s) or _halted(it, now_s)
    if found or it.spec.silent:  # programs that report nothing are left alone once they have started
        return found
    return _not_joined(it, now_s) or _not_at_the_end(it, now_s) or _no_progress(it, now_s)


def nodes_not_ready(it: Generation, now_s: float) -> list[tuple[int, str]]:
    """(node, sentence without its name) of the nodes whose imports take too long; the first sentence names all."""
    limit = it.spec.timeouts.start_s
    if now_s - it.watch.began_s <= limit:
        return []
    late = [node for node in it.plan.nodes if node.index not in it.ready]
    modules = ", ".join(it.spec.preload)
    text = f"is not ready: its ranks' imports ({modules}) are not done within {limit:g} s (launch.start_timeout_s)"
    others = [f"node {node.index} ({node.host})" for node in late[1:]]
    more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
    told = f"; nor are those of {', '.join(others[:MAX_NAMED])}{more}" if others else ""
    return [(node.index, text + (told if node is late[0] else "")) for node in late]


def halted_sentence(it: Generation, ranks: list[int]) -> str:
    """Of ranks whose processes are seen stopped."""
    places = {number: (it.ranks[number].node, it.plan.nodes[it.ranks[number].node].host) for number in ranks}
    who, are = hang.named(ranks, places), "are" if len(ranks) > 1 else "is"
    return (
        f"{who} {are} stopped (SIGSTOP) for {SILENT_S:g} s; SIGCONT to its process lets it go on. "
        f"Without a step it is given up after {it.spec.timeouts.heartbeat_s:g} s (launch.heartbeat_timeout_s)"
    )


def _halted(it: Generation, now_s: float) -> Late | None:
    """A process that somebody has stopped does nothing until somebody lets it go on, and the others wait for it."""
    limit = it.spec.timeouts.heartbeat_s
    found = {rank: s for ranks in it.halted.values() for rank, s in ranks.items() if s > limit}
    if not found or (it.watch.step is not None and now_s - it.watch.step_s <= limit):
        return None
    said = f"has done nothing for {max(found.values()):.0f} s (launch.heartbeat_timeout_s)"
    return Late("no_progress", tuple(found), said, sure=True)


def _mute(it: Generation, now_s: float) -> Late | None:
    assert it.go_s is not None
    since_go, limit = now_s - it.go_s, it.spec.timeouts.init_s + INIT_MARGIN_S
    mute = [number for number, rank in it.ranks.items() if rank.hello_s is None and rank.ended_s is None]
    mute = [number for number in mute if since_go > limit + it.import_s(it.ranks[number].node)]
    said = f"has said nothing within {since_go:.0f} s of its start (launch.init_timeout_s)"
    return Late("init_timeout", tuple(mute), said, sure=True) if mute else None


def _not_joined(it: Generation, now_s: float) -> Late | None:
    limit = it.spec.timeouts.init_s + INIT_MARGIN_S
    hellos = [rank.hello_s for rank in it.ranks.values()]
    if it.num_joined == len(it.ranks) or not all(hello is not None and now_s - hello > limit for hello in hellos):
        return None
    absent = tuple(number for number, rank in it.ranks.items() if not rank.joined)
    within = f"within {it.spec.timeouts.init_s:g} s (launch.init_timeout_s)"
    count = "no rank" if len(absent) == len(it.ranks) else f"{len(it.ranks) - len(absent)} of {len(it.ranks)} ranks"
    nobody = f"{count} joined the process group {within}"
    return Late("init_timeout", absent, f"did not join the process group {within}", nobody)


def _not_at_the_end(it: Generation, now_s: float) -> Late | None:
    """Some ranks wait at the end of the run, where others never come: who is missing, or who left too early."""
    there = {n: r.end_s for n, r in it.ranks.items() if r.end_s is not None}
    absent = [n for n, r in it.ranks.items() if r.end_s is None]
    limit = it.spec.timeouts.end_s
    if not there or not absent or now_s - min(there.values()) <= limit:
        return None
    if all(it.ranks[number].phase == ALONE for number in absent) and now_s - it.active_s <= it.spec.timeouts.save_s:
        return None
    early = [n for n in there if it.total is not None and (it.ranks[n].step or 0) < it.total]
    if early and len(there) < len(absent):
        steps = f"at step {it.ranks[early[0]].step or 0} of {it.total}"
        said = f"came to the end of the run {steps}, while {len(absent)} other(s) did not within {limit:g} s"
        return Late("straggler", tuple(early), f"{said} (launch.end_timeout_s)", sure=True)
    said = f"did not come to the end of the run, where {len(there)} other(s) wait since {limit:g} s"
    return Late("straggler", tuple(absent), f"{said} (launch.end_timeout_s)", sure=True)


def _no_progress(it: Generation, now_s: float) -> Late | None:
    """Ranks that have joined report steps, saves and phases."""
    limit = it.spec.timeouts.progress_s
    if not limit or not it.num_joined:
        return None
    if any(rank.phase in ("saving", "publishing", ALONE) for rank in it.ranks.values()):
        limit = max(limit, it.spec.timeouts.save_s)
    idle_s = now_s - it.active_s
    if idle_s <= limit:
        return None
    living = tuple(number for number, rank in it.ranks.items() if rank.ended_s is None)
    nobody = f"no rank has done a step for {idle_s:.0f} s (launch.progress_timeout_s)"
    return Late("no_progress", living, f"seems to keep the others waiting: {nobody}", nobody)


def unspoken(it: Generation) -> Late | None:
    """Where all that failed lost a peer: the ranks that live and say nothing are whom they waited for."""
    silent = [n for n, rank in it.ranks.items() if rank.ended_s is None and rank.spoke_s is None and not rank.done]
    spoke = [rank for rank in it.ranks.values() if rank.spoke_s is not None or rank.ended_s is not None]
    if not silent or not spoke:
        return None
    if it.num_joined < len(it.ranks):
        within = f"{it.spec.timeouts.init_s:g} s (launch.init_timeout_s)"
        return Late("init_timeout", tuple(silent), f"did not join the process group, for which others waited {within}")
    said = f"took no part in a collective operation that {len(spoke)} other(s) gave up (launch.collective_timeout_s)"
    return Late("wedged", tuple(silent), said)
