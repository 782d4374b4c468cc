"""How long the roll call waits for nodes, and why some did not answer: their last words, Slurm's state, the machine.

A node that runs but cannot call writes why into its log on the shared file system; one that never ran leaves none. So a
firewall, a machine that is down and a launcher that does not start are told apart.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainpkg.launch.facts import MAX_NAMED, NodeFacts, RollCallError, name_nodes
from trainpkg.launch.head.meeting.member import Member
from trainpkg.launch.head.steps.command import OnTheWay
from trainpkg.launch.reach import knock
from trainpkg.launch.slurm import ask
from trainpkg.launch.spec import Spec

AskStates = Callable[[Sequence[str]], Mapping[str, str]]
LAST_WORDS = re.compile(r"^[0-9:]{8} error: (.*)$", re.MULTILINE)  # as Node.run writes it into the node's log
NO_LOG = "its launcher never ran: its log is absent (is the run directory shared?)"
SILENT = "its launcher ran and fell silent: see its log"
LOG_BYTES = 20_000
ASK_SLURM_S = 8.0  # after the first answer
LOOK_S = 1.0
LEFT_S = 1.5  # after a node has left: time for the reason, which another one may have


@dataclass
class Waiting:
    """The patience of one roll call. `ask_states`: what Slurm says of hosts; None without Slurm."""

    spec: Spec
    say: Callable[[str], None]
    ask_states: AskStates | None = None
    begin_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None  # when the first node answered
    deadline_s: float = 0.0
    left: tuple[str, float] | None = None  # a node that answered and went, and when
    _asked: bool = False
    _next_look_s: float = 0.0
    _looked_at: int = 0

    def __post_init__(self) -> None:
        self.deadline_s = self.begin_s + self.spec.timeouts.start_s

    def answered(self) -> None:
        if self.first_s is None:
            self.first_s = time.monotonic()
            self.deadline_s = self.first_s + self.spec.timeouts.rollcall_s

    def gone(self, name: str) -> None:
        self.left = self.left or (name, time.monotonic())

    async def check(self, members: Mapping[int, Member], ended: str, way: OnTheWay) -> None:
        """Raise RollCallError when waiting is over. `ended`: why no more answers will come, or nothing."""
        now, times = time.monotonic(), self.spec.timeouts
        if way.failed:
            raise RollCallError("; ".join(way.failed[:MAX_NAMED]))
        if way.busy:  # they are there, and busy: the roll call's time is not for that
            self.deadline_s = max(self.deadline_s, min(now + times.rollcall_s, self.begin_s + times.start_s))
        look = bool(ended or self.left) or now >= min(self.deadline_s, self._next_look_s)
        if not look:  # called for each of thousands of answers
            return
        self._next_look_s = now + LOOK_S
        there = [member.facts for member in members.values()]
        absent = [index for index in range(self.spec.num_nodes) if index not in members]
        if spoken := self._spoken(absent):
            raise RollCallError(f"{spoken}. Answered: {name_nodes(there) or 'none'}")
        if self.left and (ended or now >= min(self.deadline_s, self.left[1] + LEFT_S)):
            raise RollCallError(f"{self.left[0]} answered the roll call and then its connection ended")
        if now >= self.deadline_s or ended:
            raise RollCallError(await self._sentence(absent, there, ended, way))
        if self.first_s is not None and absent and not self._asked and now > self.first_s + ASK_SLURM_S:
            self._asked = True
            await self._ask(absent, there, way)

    def _spoken(self, absent: list[int]) -> str:
        """The last words of a node that gave up: it has ended, whatever its starter still waits for. A few per look."""
        if not absent:
            return ""
        try:  # of a network file system, only a listing shows what has just been written
            names = set(os.listdir(self.spec.generation_dir(0)))  # noqa: PTH208
        except OSError:
            return ""
        wrote = [index for index in absent if f"node-{index}.log" in names]
        start = self._looked_at % max(1, len(wrote))
        some = [*wrote[start:], *wrote[:start]][:MAX_NAMED]
        self._looked_at += len(some)
        found = {index: words for index in some if (words := last_words(self.spec, index))}
        if not found:
            return ""
        spoken = ", ".join(f"node {index} ({self.spec.hosts[index]})" for index in found)
        return f"{spoken} did not answer the roll call: {next(iter(found.values()))}"

    async def _ask(self, absent: list[int], there: Sequence[NodeFacts], way: OnTheWay) -> None:
        """Some let the others wait: say so, and wait no longer for those that Slurm holds for gone."""
        hosts = {index: self.spec.hosts[index] for index in absent[:MAX_NAMED]}
        states = await states_of(list(hosts.values()), self.ask_states)
        told = [
            f"node {i} ({host}{', Slurm says ' + states[host] if host in states else ''})" for i, host in hosts.items()
        ]
        self.say(f"still waiting for {len(absent)} node(s): {', '.join(told)}")
        if any(ask.is_down(state) for state in states.values()):
            raise RollCallError(await self._sentence(absent, there, "Slurm held it for gone", way))

    async def _sentence(self, absent: list[int], there: Sequence[NodeFacts], ended: str, way: OnTheWay) -> str:
        some = [way.busy.get(index, f"node {index} ({self.spec.hosts[index]})") for index in absent[:MAX_NAMED]]
        more = f" and {len(absent) - MAX_NAMED} more" if len(absent) > MAX_NAMED else ""
        times = self.spec.timeouts
        if ended:
            within = f"before {ended}"
        elif self.first_s is not None:
            within = f"within {times.rollcall_s:g} s of the first answer (launch.rollcall_timeout_s)"
        else:
            within = f"within {times.start_s:g} s (launch.start_timeout_s)"
        why = await explain(self.spec, [index for index in absent if index not in way.busy], self.ask_states)
        return (
            f"{', '.join(some)}{more} did not answer the roll call {within}; answered: "
            f"{name_nodes(there) or 'none'}. {why}{'. ' if why else ''}Logs of the nodes' launchers: "
            f"node-K.log in {self.spec.generation_dir(0)}"
        )


def last_words(spec: Spec, index: int) -> str | None:
    """The last error in the log of a node's launcher; empty when it tells of none, None when there is no log."""
    try:
        text = (spec.generation_dir(0) / f"node-{index}.log").read_bytes()[-LOG_BYTES:].decode(errors="replace")
    except OSError:
        return None
    found = LAST_WORDS.findall(text)
    return found[-1].strip() if found else ""


async def states_of(hosts: Sequence[str], ask_states: AskStates | None) -> Mapping[str, str]:
    """Slurm's states of a few hosts; empty without Slurm."""
    if ask_states is None or not hosts:
        return {}
    return await asyncio.to_thread(ask_states, list(hosts))


async def explain(spec: Spec, indices: Sequence[int], ask_states: AskStates | None) -> str:
    """Sentences on why each of these nodes is missing (a few of them)."""
    some = list(indices)[:MAX_NAMED]
    hosts = [spec.hosts[index] for index in some]
    remote = spec.where != "local"
    states = await states_of(hosts, ask_states)
    knocks = await asyncio.gather(*(knock(host) for host in hosts)) if remote else [""] * len(some)
    groups: dict[str, list[str]] = {}
    for index, host, knocked in zip(some, hosts, knocks, strict=True):
        log = NO_LOG if last_words(spec, index) is None else SILENT
        told = ", ".join(part for part in (ask.describe(states, host), knocked, log) if part)
        groups.setdefault(told, []).append(f"node {index} ({host})")
    return "; ".join(f"{', '.join(names)}: {told}" for told, names in groups.items())
