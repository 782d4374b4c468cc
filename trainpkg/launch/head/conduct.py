"""One attempt once the nodes have met: generations of ranks, from `go` to a verdict.

A generation ends when all ranks are done, at the first failure (gathered, then all are stopped), or when it is told to.
A failure with restarts left and all nodes still there starts the next generation in the same processes, with a new port
and store. Everything here follows from messages in the coordinator's inbox and from the clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainpkg.launch.facts import NodeFacts, RollCallError
from trainpkg.launch.head.blame import failure, hang
from trainpkg.launch.head.blame.failure import Failure
from trainpkg.launch.head.blame.generation import Generation
from trainpkg.launch.head.blame.step_words import End
from trainpkg.launch.head.blame.watch import Watch
from trainpkg.launch.head.collected import Collected
from trainpkg.launch.head.deadline import Deadline
from trainpkg.launch.head.meeting.member import Incoming
from trainpkg.launch.head.meeting.rollcall import Coordinator
from trainpkg.launch.head.outcome import AGAIN, DO_NOT_RUN_AGAIN, INTERRUPTED, Outcome, why_no_restart
from trainpkg.launch.head.screen import Screen
from trainpkg.launch.head.steps.rank_steps import RankSteps
from trainpkg.launch.plan import LaunchPlan
from trainpkg.launch.slurm.grammar import run_lengths
from trainpkg.launch.spec import ENTRY, Spec
from trainpkg.launch.wire import BEAT_S

STACKS_TIMEOUT_S = 3.0
STOPPED_TIMEOUT_S = 15.0  # beyond the grace: the ranks are killed by then
MAX_OTHER_PORTS = 3  # generations that end because another program took the port, beyond the restarts


@dataclass
class Conductor:
    """Runs the generations. `node_end(index)`: how a node's process ended, where it can be known."""

    coordinator: Coordinator
    spec: Spec
    nodes: list[NodeFacts]
    screen: Screen
    node_end: Callable[[int], End]
    rank_steps: RankSteps
    origin: tuple[str, float] = field(default_factory=lambda: ("the start", time.monotonic()))  # what times count from
    asked: str = ""  # why the ranks were asked to save and end
    interrupted: bool = False
    late: bool = False  # time was up before the ranks had stopped
    deadline: Deadline = field(init=False)
    collected: Collected = field(init=False)
    at_once: bool = False  # interrupted without regard for a checkpoint that is being saved
    _shown: int | None = None
    _verdicts: set[str | None] = field(default_factory=set)
    outcome: Outcome = field(default_factory=lambda: Outcome("failed", 1))

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.spec.deadline, self.spec.deadline_lead_s)

    def save_and_end(self, why: str) -> None:
        """Ask all ranks to save and end at the next step boundary. May be called again, and before they run."""
        if not self.asked:
            self.screen.say(f"stop requested ({why}): all ranks save and end")
        self.asked = self.asked or why
        self.coordinator.tell_all({"type": "save"})

    def interrupt(self, at_once: bool = False) -> None:
        """End everything now; a checkpoint that is being saved is waited for unless `at_once`."""
        self.interrupted, self.at_once = True, self.at_once or at_once

    async def run(self) -> Outcome:
        """All generations; returns the outcome of the attempt."""
        previous: Failure | None = None
        restarts, other_ports = self.spec.max_restarts, MAX_OTHER_PORTS
        for number in itertools.count():
            self.outcome.generations = number + 1
            try:
                plan, proof = await self.coordinator.prove_plan(self.nodes, number)
            except RollCallError as error:
                if previous is None:
                    return self._finish("failed", 1, sentence=str(error))
                why = f"{previous.sentence} (no restart in place: {error})"  # the failure stays the cause
                return self._finish("failed", previous.status, previous, why)
            self._announce(plan, number, proof)
            found = await self._generation(plan, number)
            if self.interrupted:
                return self._finish("interrupted", INTERRUPTED, sentence="interrupted; all ranks were ended")
            if found is None:
                return self._conclude()
            self.outcome.repeated = found.repeats(previous)
            if found.kind == "port_taken" and other_ports > 0:  # nobody's fault, and gone with another port
                restarts, other_ports = restarts + 1, other_ports - 1
            whole = len(self.coordinator.members) == self.spec.num_nodes
            repeated, stopping = self.outcome.repeated, bool(self.asked)
            why_not = why_no_restart(found, restarts - number, self.spec.max_restarts, whole, repeated, stopping)
            if why_not is not None:
                return self._finish("failed", found.status, found, found.sentence + why_not)
            self.screen.say(f"starting all ranks again from the last checkpoint (restart {number + 1} of {restarts})")
            previous = found
        raise AssertionError("unreachable: a generation either ends or has no restart left")

    def _announce(self, plan: LaunchPlan, number: int, proof: str) -> None:
        folder = self.spec.generation_dir(number)
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"device": self.nodes[0].device, "gpus": [node.gpus for node in self.nodes]}
        facts |= {"addresses": [list(own) for own in self.coordinator.advertised]}
        (folder / "plan.json").write_text(json.dumps(plan.to_dict() | facts) + "\n")
        if number == 0:
            self.screen.say(plan.describe())
        if proof:
            self.screen.say(f"master address proven: {proof}")

    async def _generation(self, plan: LaunchPlan, number: int) -> Failure | None:
        """One generation; None when all ranks ended as they should, or were interrupted."""
        now = time.monotonic()
        watch = Watch(self.spec.timeouts.heartbeat_s, now, dict.fromkeys(self.coordinator.members, now))
        current = Generation(self.spec, plan, number, watch, self.origin, self.node_end)
        self.collected = Collected(self.spec, number, self.screen.say)
        self.coordinator.tell_all({"type": "prepare", "generation": number})
        await self._until_over(current)
        if current.failed_s is not None and not self.interrupted and not current.named:
            await self._ask_stacks(current)
        if current.failed_s is not None:  # said at once: ending what is left may take a while
            self.screen.say(f"{failure.find_cause(current.all_records()).sentence}; ending all ranks")
        await self._stop_all(current)  # also after a good end: what ranks left behind goes too
        self.collected.look(at_the_end=True)
        if current.step_first is not None and self.outcome.step_first is None:
            self.outcome.step_first = current.step_first
        self.outcome.step_last = current.step_last if current.step_last is not None else self.outcome.step_last
        self.outcome.step_saved = current.step_saved if current.step_saved is not None else self.outcome.step_saved
        self._verdicts = {rank.done for rank in current.ranks.values()}
        if current.failed_s is None or self.interrupted or self.late:
            return None
        self.origin = ("the failure", current.failed_s)
        found = dataclasses.replace(failure.find_cause(current.all_records()), stacks=hang.grouped(current.stacks))
        path = self.spec.generation_dir(number) / "failure.json"
        path.write_text(json.dumps(found.as_dict(), indent=1) + "\n")
        return found

    def _go(self, current: Generation) -> None:
        """All nodes have imported what ranks need: start them everywhere at once, so that none waits for another."""
        plan = current.plan
        counts = run_lengths([node.num_ranks for node in plan.nodes])
        go = {"type": "go", "generation": current.number, "counts": counts, "device": self.nodes[0].device}
        if self.spec.where == "typed":
            go["hosts"] = self.spec.hosts  # nobody knew them before the roll call
        if (order := plan.rank_order) != list(range(plan.num_nodes)):
            go["rank_order"] = order
        self.coordinator.tell_all(go | {"master_addr": plan.master_addr, "master_port": plan.master_port})
        current.gone(time.monotonic())
        self.rank_steps.start(plan, self.nodes)
        if self.asked or self.coordinator.stop_asked:
            self.save_and_end(self.asked or self.coordinator.stop_asked)

    async def _until_over(self, current: Generation) -> None:
        """Take messages until all ranks are done, a failure has been gathered, or an interruption."""
        next_look = 0.0
        while not (current.over or current.gathered(time.monotonic()) or self.interrupted or self.late):
            incoming = await self._next(0.1)
            now = time.monotonic()
            if incoming is not None:
                self._handle(current, incoming, now)
            if current.may_go and not self.interrupted:
                self._go(current)
            if now >= next_look:
                next_look = now + BEAT_S
                self._look(current, now)

    async def _next(self, timeout_s: float) -> Incoming | None:
        try:
            return await asyncio.wait_for(self.coordinator.inbox.get(), timeout_s)
        except TimeoutError:
            return None

    def _handle(self, current: Generation, incoming: Incoming, now: float) -> None:
        member, message, index = incoming.member, incoming.message, incoming.member.facts.index
        if self.coordinator.members.get(index) is not member:
            return
        if message is None:
            del self.coordinator.members[index]
            current.node_lost(index, member.facts, now)
            return
        current.watch.heard(index, now)
        if message["type"] == "stop":
            self.save_and_end(f"{member.name}: {message.get('why')}")
        elif message.get("generation") == current.number:
            said = current.take(index, message, now)
            if said:
                self.screen.say(said)
            if current.step_last is not None and current.step_last != self._shown:
                self._shown = current.step_last
                self.screen.progress(self._shown, current.total)
            if self.asked and message.get("event") in ("hello", "joined", "step"):
                # before its handlers stood, a rank ignored the request
                member.tell({"type": "save"})

    def _look(self, current: Generation, now: float) -> None:
        silent, back, lost = current.watch.look(now)
        for index in silent:
            self.screen.say(f"{self._name(index)} has been silent for 5 s; its ranks may go on")
        for index in back:
            self.screen.say(f"{self._name(index)} is heard again")
        for index in lost:
            current.node_silent(index, self.nodes[index], now)
            self.coordinator.members.pop(index).writer.close()
        self.rank_steps.look(current, now)
        self.collected.look()
        current.check_late(now)
        self._mind_the_clock(current, time.time())

    def _mind_the_clock(self, current: Generation, unix_s: float) -> None:
        deadline = self.deadline
        deadline.save_s = max(deadline.save_s, current.save_s)
        deadline.step_s = current.watch.pace_s or deadline.step_s
        if deadline.near(unix_s) and not self.asked:
            self.save_and_end(deadline.why)
        self.late = self.late or deadline.over(unix_s)

    async def _ask_stacks(self, current: Generation) -> None:
        """Nobody failed by itself: ask all nodes where their living ranks are, before these are ended."""
        self.coordinator.tell_all({"type": "stacks", "generation": current.number})
        end = time.monotonic() + STACKS_TIMEOUT_S
        while set(self.coordinator.members) - current.told_stacks and time.monotonic() < end:
            if (incoming := await self._next(0.1)) is not None:
                self._handle(current, incoming, time.monotonic())
        current.judge(time.monotonic())

    def _name(self, index: int) -> str:
        return f"node {index} ({self.nodes[index].host})"

    async def _stop_all(self, current: Generation) -> None:
        """End the ranks of all nodes and wait until each node says that none is left. A node that does not is lost."""
        times, order = self.spec.timeouts, self._stop_order(current)
        self.coordinator.tell_all({"type": "stop", "generation": current.number} | order)
        if any(rank.phase in order["spare"] for rank in current.ranks.values()):
            self.screen.say(
                f"a checkpoint is being saved: its ranks have {times.save_grace_s:g} s (launch.save_grace_s)"
            )
        end = time.monotonic() + max(times.stop_grace_s, times.save_grace_s) + STOPPED_TIMEOUT_S
        while (waiting := set(self.coordinator.members) - current.stopped) and time.monotonic() < end:
            if (incoming := await self._next(0.1)) is not None:
                self._handle(current, incoming, time.monotonic())
        for index in waiting:
            self.screen.say(f"{self._name(index)} did not say that its ranks have ended")
            self.coordinator.members.pop(index).writer.close()
        await asyncio.to_thread(self.rank_steps.end)

    def _stop_order(self, current: Generation) -> dict[str, Any]:
        """How long ranks have to end by themselves, and in which phases they have longer.

        A collective save cannot succeed once a rank is gone, but rank 0 may be about to publish what all have written.
        Once a peer is gone there is nothing that the trainer's own ranks could still do.
        """
        grace_s = self.spec.timeouts.stop_grace_s
        if self.at_once or self.late:
            return {"grace_s": grace_s, "spare": []}
        if self.interrupted:
            return {"grace_s": grace_s, "spare": ["saving", "publishing"]}
        own = self.spec.entry == ENTRY
        return {"grace_s": 0.0 if own and current.failed_s is not None else grace_s, "spare": ["publishing"]}

    def _conclude(self) -> Outcome:
        """All ranks said that they are done, with one verdict."""
        if self._verdicts == {"finished"}:
            return self._finish("finished", 0)
        if self.late and self._verdicts != {"again"}:
            return self._out_of_time()
        last, first = self.outcome.step_last, self.outcome.step_first
        if self.spec.silent and last is None and self._verdicts == {"again"}:
            return self._finish("again", AGAIN, sentence="its program asks to be run again (status 75)")
        if last is not None and first is not None and last >= first:
            return self._finish("again", AGAIN, sentence=f"stopped and saved at step {last}; to be run again")
        return self._finish("stuck", DO_NOT_RUN_AGAIN, sentence="stopped before any step was done; not to be run again")

    def _out_of_time(self) -> Outcome:
        """The ranks were still at it when the job had to end. What they saved before then is not lost."""
        last, saved = self.outcome.step_last, self.outcome.step_saved
        text = self.deadline.too_late(last)
        if saved is not None:
            return self._finish("again", AGAIN, sentence=f"{text}; goes on from the save of step {saved}")
        if last is None and not self.spec.silent:
            return self._finish("stuck", DO_NOT_RUN_AGAIN, sentence=f"{text}. Not to be run again")
        return self._finish("failed", 1, sentence=text)

    def _finish(self, verdict: str, status: int, found: Failure | None = None, sentence: str = "") -> Outcome:
        self.outcome.verdict, self.outcome.status = verdict, status
        self.outcome.failure, self.outcome.sentence = found, sentence
        return self.outcome
