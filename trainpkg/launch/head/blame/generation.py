"""The state of one generation of ranks: who joined, how far they are, how they ended. Fed with messages and times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.head.blame import failure, hang, late, units
from trainpkg.launch.head.blame.failure import Record
from trainpkg.launch.head.blame.rankstate import RankState
from trainpkg.launch.head.blame.step_words import End
from trainpkg.launch.head.blame.watch import SILENT_S, Watch
from trainpkg.launch.plan import LaunchPlan
from trainpkg.launch.spec import Spec
from trainpkg.launch.stacks import Stack
from trainpkg.launch.wire import Message

END = "end"  # the phase of a rank that has done its work and waits for the others


class Generation:
    """One start of all ranks. Times are the coordinator's monotonic seconds."""

    def __init__(
        self,
        spec: Spec,
        plan: LaunchPlan,
        number: int,
        watch: Watch,
        origin: tuple[str, float],
        node_end: Callable[[int], End],
    ) -> None:
        self.spec, self.plan, self.number, self.watch, self.origin = spec, plan, number, watch, origin
        self.node_end = node_end
        watch.stepless = spec.silent  # such programs tell of a step now and then, or never
        self.ranks = {number: RankState(node) for number, node in units.units(spec, plan).items()}
        self.records: list[Record] = []  # of nodes, and what was inferred
        self.failed_s: float | None = None
        self.ready: set[int] = set()  # nodes whose imports are done
        self.late: hang.Late | None = None  # what was inferred from silence
        self.stacks: dict[int, Stack] = {}  # where living ranks are, once asked
        self.told_stacks: set[int] = set()  # nodes that have answered that question
        self.active_s = watch.began_s  # the last sign of progress from any rank
        self.own_imports: set[int] = set()  # nodes on which each rank imports everything itself
        self.go_s: float | None = None  # when all nodes were told to start their ranks
        self.stopped: set[int] = set()  # nodes that have no rank left
        self.programs: set[int] = set()  # nodes whose program, which started their ranks, has ended well
        self.halted: dict[int, dict[int, float]] = {}  # node -> its stopped ranks, and for how many seconds
        self.step_first: int | None = None
        self.step_last: int | None = None
        self.total: int | None = None
        self.step_saved: int | None = None
        self.save_s = 0.0  # the longest save
        self.num_joined = 0
        self.num_ended = 0

    @property
    def over(self) -> bool:
        """Whether every rank has ended as it should, and whatever started them."""
        awaited = units.num_programs(self.spec)
        return self.failed_s is None and self.num_ended == len(self.ranks) and len(self.programs) == awaited

    @property
    def may_go(self) -> bool:
        """Whether all nodes wait for the order to start their ranks."""
        return self.go_s is None and self.failed_s is None and len(self.ready) == len(self.plan.nodes)

    def gone(self, now_s: float) -> None:
        """The order has been given; the ranks' times count from here."""
        self.go_s = self.watch.began_s = self.active_s = now_s

    def gathered(self, now_s: float) -> bool:
        """Whether a failure is old enough for its cause to have spoken."""
        if self.failed_s is None:
            return False
        named = self.named
        if self.late is not None or (named and self.num_ended == len(self.ranks)):  # nobody is left to say more
            return True
        return now_s - self.failed_s > failure.GATHER_S + (0.0 if named else failure.GATHER_MORE_S)

    @property
    def named(self) -> bool:
        """Whether somebody has failed by itself."""
        return any(record.kind in failure.CAUSES | failure.DOUBTFUL for record in self.all_records())

    def judge(self, now_s: float) -> None:
        """Where nobody failed by itself, blame whom the others waited for, as far as stacks and counters tell."""
        found = self.late or late.unspoken(self)
        if self.named or found is None:
            return
        steps = {number: rank.step for number, rank in self.ranks.items()}
        places = {number: (rank.node, self._host(rank.node)) for number, rank in self.ranks.items()}
        self.records += hang.records(found, self.stacks, steps, places, now_s)

    def all_records(self) -> list[Record]:
        """Of all ranks that ended otherwise than they should, and of nodes."""
        found = [self._explained(record) for record in self.records]
        for number, rank in self.ranks.items():
            if not rank.ended:
                continue
            time_s = min(t for t in (rank.spoke_s, rank.ended_s) if t is not None)
            record = failure.rank_record({"rank": number} | rank.ended, rank.node, self._host(rank.node), time_s)
            if record is not None:
                found.append(units.as_seen(self.spec, self.plan, record, rank.ended))
        return found

    def _explained(self, record: Record) -> Record:
        if record.kind != "node_lost":
            return record
        signum, words = self.node_end(record.node)
        killed = f", {words}" if words else ""
        return dataclasses.replace(record, signal=signum, message=record.message + killed)

    def _host(self, node: int) -> str:
        return self.plan.nodes[node].host

    def _fail(self, now_s: float) -> None:
        if self.failed_s is None:
            self.failed_s = now_s

    def take(self, node: int, message: Message, now_s: float) -> str:
        """Digest one message of this generation; returns a line for people, or nothing."""
        kind = message["type"]
        if kind == "event":
            return self._event(self.ranks[message["rank"]], message, now_s)
        if kind == "beat":
            for rank, step in message["steps"].items():
                self._step(self.ranks[int(rank)], step, now_s)
            return self._halted(node, {int(rank): s for rank, s in message.get("halted", {}).items()})
        if kind == "ended":
            self._ended(self.ranks[message["rank"]], message, now_s - float(message.get("age_s", 0.0)))
        elif kind == "ready" and not message.get("error"):
            self.ready.add(node)
            if message.get("own_imports"):
                self.own_imports.add(node)
        elif kind == "ready":
            self._record("start", node, self._host(node), now_s, message["error"], message.get("details", ""))
        elif kind == "start_failed":
            details, signum = message.get("details", ""), message.get("signal")
            self._record("start", node, self._host(node), now_s, message["message"], details, signum)
        elif kind == "program_ended":
            record = units.of_program(self.plan, node, message, now_s, self.step_last)
            if record is None:
                self.programs.add(node)
            else:
                self.records.append(record)
                self._fail(now_s)
        elif kind == "stacks":
            self.told_stacks.add(node)
            for group in message["stacks"]:
                stack = Stack(tuple(group["frames"]), group["state"])
                self.stacks |= dict.fromkeys(group["ranks"], stack)
        elif kind == "stopped":
            self.stopped.add(node)
            if message.get("left"):
                return f"node {node} ({self._host(node)}): processes {message['left']} did not die"
        return ""

    def _event(self, rank: RankState, message: Message, now_s: float) -> str:
        event = message["event"]
        self.active_s = now_s
        if event == "started":
            return self._started(rank, now_s)
        if event == "busy":
            rank.phase = message["phase"]
            rank.end_s = rank.end_s or (now_s if rank.phase == END else None)
            self.watch.stepless = self.spec.silent or any(other.phase for other in self.ranks.values())
        elif event == "hello":
            rank.started, rank.hello_s = True, now_s
        elif event == "joined" and not rank.joined:
            rank.joined = True
            self.num_joined += 1
            if self.num_joined == len(self.ranks):
                what, origin_s = self.origin
                seconds = now_s - self.watch.began_s
                after = f"{now_s - origin_s:.2f} s after {what}"
                return f"{self.num_joined} of {len(self.ranks)} ranks joined in {seconds:.2f} s, {after}"
        elif event == "step":
            self.total = message.get("total") or self.total
            first = self.step_first is None
            self._step(rank, message["step"], now_s)
            if first and self.number > 0:
                return f"training goes on with step {message['step']}, {now_s - self.origin[1]:.2f} s after the failure"
        elif event == "saved":
            self.step_saved = max(self.step_saved or 0, message["step"])
            self.save_s = max(self.save_s, float(message.get("seconds") or 0.0))
        elif event == "done":
            rank.done = message["verdict"]
            self.step_last = max(self.step_last or 0, message.get("step") or 0) or None
        elif event == "exception":
            rank.spoke_s = now_s
            rank.ended = rank.ended | {"exception": message, "step": rank.step}
            self._fail(now_s)
        return ""

    def _started(self, rank: RankState, now_s: float) -> str:
        """A rank's process is there; of a silent one that is all that will be known before its end."""
        rank.started = True
        if not self.spec.silent or rank.hello_s is not None:
            return ""
        rank.hello_s = now_s
        self.num_joined += 1
        what = "programs" if self.spec.foreign else "ranks"
        num = len(self.ranks)
        return f"{self.num_joined} of {num} {what} started" if self.num_joined == num else ""

    def _step(self, rank: RankState, step: int, now_s: float) -> None:
        if step != rank.step:
            self.active_s = now_s
        rank.step = step
        if self.step_first is None or step < self.step_first:
            self.step_first = step
        if self.step_last is None or step > self.step_last:
            self.step_last = step
        self.watch.stepped(step, now_s)

    def _halted(self, node: int, seconds: dict[int, float]) -> str:
        """Ranks of a node whose processes are stopped. Said once, after some seconds; `late` gives them up."""
        before, self.halted[node] = self.halted.get(node, {}), seconds
        fresh = [rank for rank, s in seconds.items() if before.get(rank, 0.0) <= SILENT_S < s]
        return late.halted_sentence(self, fresh) if fresh else ""

    def _ended(self, rank: RankState, message: Message, time_s: float) -> None:
        self.num_ended += rank.ended_s is None
        rank.ended_s = time_s
        rank.end_s = rank.end_s or time_s
        spoken = {"exception": rank.ended["exception"]} if rank.ended.get("exception") else {}
        rank.done = rank.done or message.get("done")
        if message.get("step") is not None:  # newer than the last heartbeat
            self._step(rank, message["step"], time_s)
        rank.ended = message | spoken | {"step": rank.step}
        if failure.rank_record(rank.ended, rank.node, "", time_s) is not None:
            self._fail(time_s)

    def _record(
        self, kind: str, node: int, host: str, now_s: float, text: str, details: str = "", signum: int | None = None
    ) -> None:
        step = self.step_last
        self.records.append(Record(kind, node, host, now_s, message=text, traceback=details, step=step, signal=signum))
        self._fail(now_s)

    def node_lost(self, node: int, facts: NodeFacts, now_s: float) -> None:
        """The connection to a node's launcher ended while its ranks ran."""
        when = "before the first step" if self.step_last is None else f"at step {self.step_last}"
        text = f"vanished {when}: the connection to its launcher (process {facts.pid}) ended"
        self._record("node_lost", node, facts.host, now_s, text)

    def node_silent(self, node: int, facts: NodeFacts, now_s: float) -> None:
        """A node has been given up."""
        silence = now_s - self.watch.heard_s[node]
        step = "" if self.watch.step is None else f", and no step was done for {now_s - self.watch.step_s:.0f} s"
        text = f"was silent for {silence:.0f} s{step}: the machine, its network or its launcher is stuck"
        self._record("node_silent", node, facts.host, now_s, text)
        self.watch.heard_s.pop(node)

    def never_started(self, numbers: list[int], text: str, now_s: float) -> None:
        """Ranks whose processes never were: their step did not bring them about."""
        for number in numbers:
            node, said = self.ranks[number].node, f"was never started: {text}"
            self.records.append(Record("start", node, self._host(node), now_s, rank=number, message=said))
        self._fail(now_s)

    def check_late(self, now_s: float) -> None:
        """Infer a failure from what has not happened: nodes not ready; ranks mute, not joined, stuck, not there."""
        if self.failed_s is not None:
            return
        if self.go_s is None:
            for node, text in late.nodes_not_ready(self, now_s):  # the first is the one that the verdict speaks of
                self._record("start", node, self._host(node), now_s, text)
            return
        self.late = late.find(self, now_s)
        if self.late is not None:
            self._fail(now_s)

    def import_s(self, node: int) -> float:
        """What ranks on this node may take beyond the time to join."""
        return self.spec.timeouts.start_s if node in self.own_imports else 0.0
