"""What names lead to on this machine and how long asking takes: forward and reverse lookups, timed.

Ranks are only ever given addresses, so nothing here decides anything; but torch asks for the name of each peer when
ranks meet, other programs ask for their own host, and a slow or wrong answer costs minutes that nobody can explain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trainpkg.launch.network import is_loopback

LIMIT_S = 20.0  # for all lookups of a node; a resolver without an answer takes 5 s per server and try
SLOW_S = 0.5
HOSTS_FILE = "/etc/hosts"
T = TypeVar("T")


@dataclass(frozen=True)
class Lookup:
    """One question and what came back. `asked` is a name (`kind` forward) or an address (reverse)."""

    kind: str
    asked: str
    answers: list[str]
    seconds: float
    error: str = ""

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Lookup:
        return cls(**{f.name: message[f.name] for f in dataclasses.fields(cls)})

    @property
    def question(self) -> str:
        return f"the {self.kind} lookup of {self.asked}"


def forward(name: str) -> Lookup:
    """The addresses of a name, IPv4 and IPv6, in the resolver's order."""
    begin = time.monotonic()
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Lookup("forward", name, [], time.monotonic() - begin, getattr(error, "strerror", None) or str(error))
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    return Lookup("forward", name, addresses, time.monotonic() - begin)


def reverse(address: str) -> Lookup:
    """The name of an address."""
    begin = time.monotonic()
    try:
        name = socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
    except OSError as error:
        return Lookup("reverse", address, [], time.monotonic() - begin, getattr(error, "strerror", None) or str(error))
    return Lookup("reverse", address, [name], time.monotonic() - begin)


def look_up(names: Sequence[str], addresses: Sequence[str], limit_s: float = LIMIT_S) -> list[Lookup]:
    """All these lookups, one after another; those that are not done in time are marked so. Blocks up to `limit_s`.

    A resolver cannot be interrupted, so it runs in a thread that the process does not wait for.
    """
    questions = [("forward", name) for name in names] + [("reverse", address) for address in addresses]
    found: queue.Queue[list[Lookup]] = queue.Queue()

    def ask() -> None:
        for kind, asked in questions:
            answer = forward(asked) if kind == "forward" else reverse(asked)
            # the name that an address is said to have: does it lead back?
            back = [forward(name) for name in answer.answers] if kind == "reverse" else []
            found.put([answer, *back])

    in_background(ask, lambda _: None)
    lookups: list[Lookup] = []
    end = time.monotonic() + limit_s
    for done, (kind, asked) in enumerate(questions):
        try:
            lookups += found.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            lookups.append(Lookup(kind, asked, [], limit_s, f"no answer within {limit_s:g} s"))
            lookups += [Lookup(kind, asked, [], 0.0, "not asked") for kind, asked in questions[done + 1 :]]
            break
    return lookups


def complaints(
    node: str, host: str, own: Sequence[str], lookups: Sequence[Lookup], first: tuple[str, Sequence[str]] = ("", ())
) -> list[str]:
    """Sentences on names that lead astray or take long.

    `host` and `own`: the node's own name and addresses; `first`: the first node's, as far as known.
    """
    found = []
    slow = [lookup for lookup in lookups if lookup.seconds > SLOW_S]
    if slow:
        worst = max(slow, key=lambda lookup: lookup.seconds)
        found.append(
            f"{node}: {worst.question} took {worst.seconds:.1f} s"
            + (f" ({worst.error})" if worst.error else "")
            + ", and torch asks for the name of each peer when ranks meet. Put names and addresses of all nodes into "
            f"{HOSTS_FILE}, or mend the DNS server's zone"
        )
    forwards = {lookup.asked: lookup for lookup in lookups if lookup.kind == "forward"}
    mine = forwards.get(host)
    if mine is not None and mine.error and mine not in slow:
        found.append(
            f"{node}: its own name {host} cannot be resolved there ({mine.error}). Ranks are given addresses; programs "
            f"that ask for the name fail. A line in {HOSTS_FILE} mends it"
        )
    elif mine is not None and any(is_loopback(address) for address in mine.answers):
        found.append(
            f"{node}: its own name {host} leads to {', '.join(mine.answers)} there ({HOSTS_FILE}), which no other node "
            f"reaches. Ranks use {own[0] if own else 'the address of the interface'} instead"
        )
    named, addresses = first
    there = forwards.get(named) if named != host and addresses else None
    if there is not None and there.answers and not set(there.answers) & set(addresses):
        found.append(
            f"{node}: the name of the first node, {named}, leads to {', '.join(there.answers)} there, which that node "
            f"does not have (it has {', '.join(addresses)}). Ranks are given an address; programs that use the name "
            f"meet somebody else. Mend the DNS or {HOSTS_FILE}"
        )
    for lookup in lookups:
        for name in lookup.answers if lookup.kind == "reverse" else []:
            back = forwards.get(name)
            if back is not None and lookup.asked not in back.answers:
                leads = f"leads to {', '.join(back.answers)}" if back.answers else "cannot be resolved"
                found.append(
                    f"{node}: {lookup.asked} is called {name} there, but that name {leads}: messages of torch and the "
                    f"system will name the wrong host. Mend the reverse zone of the DNS or {HOSTS_FILE}"
                )
    return found


def in_background(work: Callable[[], T], tell: Callable[[T], object]) -> None:
    """Do the work in a thread that nothing waits for, and call `tell` with its result from there."""

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            tell(work())

    threading.Thread(target=run, daemon=True).start()
