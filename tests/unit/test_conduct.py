"""What the conductor concludes, without any process: played coordinators, generations and times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_rollcall import make_facts, make_spec
from trainpkg.launch.facts import NodeFacts, RollCallError
from trainpkg.launch.head.blame.failure import Failure, Record, find_cause
from trainpkg.launch.head.blame.generation import Generation
from trainpkg.launch.head.blame.watch import Watch
from trainpkg.launch.head.conduct import Conductor
from trainpkg.launch.head.meeting.rollcall import Coordinator
from trainpkg.launch.head.steps.rank_steps import RankSteps
from trainpkg.launch.plan import LaunchPlan, make_plan
from trainpkg.launch.spec import Spec, Timeouts

KILLED = Record("signal", 1, "n2", 0.0, rank=3, step=7, signal=9)


class Silent:
    """A screen that nobody reads."""

    def say(self, text: str) -> None:
        pass

    def progress(self, step: int, total: int | None) -> None:
        pass


def conductor_of(coordinator: Coordinator, spec: Spec, nodes: list[NodeFacts]) -> Conductor:
    steps = RankSteps(spec, [], lambda text: None)
    return Conductor(coordinator, spec, nodes, Silent(), lambda index: (None, ""), steps)


def plan_of(hosts: list[str]) -> LaunchPlan:
    return make_plan(hosts, [2] * len(hosts), master_addr="127.0.0.1", master_port=10_001, one_machine=True)


def test_the_failure_stays_the_cause_when_no_restart_can_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prove(self: Coordinator, nodes: Any, number: int) -> tuple[LaunchPlan, str]:
        if number:
            raise RollCallError("node 0 (n1) cannot open a port for the ranks")
        return plan_of(self.spec.hosts), ""

    async def generation(self: Conductor, plan: LaunchPlan, number: int) -> Failure:
        return find_cause([KILLED])

    monkeypatch.setattr(Coordinator, "prove_plan", prove)
    monkeypatch.setattr(Conductor, "_generation", generation)

    async def run() -> Any:
        coordinator = Coordinator(make_spec(launch_dir=str(tmp_path)), "secret", lambda text: None)
        coordinator.members = dict.fromkeys((0, 1))  # type: ignore[assignment]
        nodes = [make_facts(0), make_facts(1)]
        return await conductor_of(coordinator, coordinator.spec, nodes).run()

    outcome = asyncio.run(run())
    assert (outcome.verdict, outcome.status) == ("failed", 137)
    assert outcome.failure is not None
    assert outcome.failure.rank == 3
    assert "rank 3 on node 1 (n2) was killed by SIGKILL at step 7" in outcome.sentence
    assert "(no restart in place: node 0 (n1) cannot open a port for the ranks)" in outcome.sentence


def begin(num_nodes: int, **timeouts: float) -> Generation:
    """A generation at time 0: 600 s to import, 60 s to join, two ranks per node."""
    times = Timeouts(**{"start_s": 600, "init_s": 60} | timeouts)
    spec = make_spec(num_nodes, timeouts=times, preload=["torch"])
    return Generation(spec, plan_of(spec.hosts), 0, Watch(60.0, 0.0), ("the start", 0.0), lambda index: (None, ""))


def ready(generation: Generation, nodes: list[int], **more: Any) -> None:
    for node in nodes:
        generation.take(node, {"type": "ready", "generation": 0} | more, 1.0)


def test_nodes_whose_imports_do_not_end_are_named() -> None:
    generation = begin(12)
    ready(generation, [0, 2])
    generation.check_late(599.0)
    assert not generation.may_go
    assert generation.failed_s is None
    generation.check_late(601.0)
    sentence = find_cause(generation.all_records()).sentence
    assert sentence.startswith("node 1 (n2) is not ready: its ranks' imports (torch) are not done within 600 s")
    assert "nor are those of node 3 (n4), node 4 (n5)" in sentence
    assert sentence.endswith("node 10 (n11) and 1 more")


def test_an_import_that_fails_keeps_its_traceback() -> None:
    generation = begin(2)
    ready(generation, [0])
    ready(generation, [1], error="could not start its ranks: cannot import torch", details="Traceback")
    found = find_cause(generation.all_records())
    assert (found.kind, found.node, found.traceback) == ("start", 1, "Traceback")
    assert not generation.may_go


@pytest.mark.parametrize(("own_imports", "late_s"), [(False, 366.0), (True, 966.0)])
def test_ranks_that_never_say_a_word_are_late_by_name(own_imports: bool, late_s: float) -> None:
    generation = begin(2)
    ready(generation, [0, 1], own_imports=own_imports)
    assert generation.may_go
    generation.gone(300.0)
    for rank in (0, 1, 3):
        generation.take(rank // 2, {"type": "event", "event": "hello", "rank": rank}, late_s - 2)
    generation.check_late(late_s - 2)
    assert generation.failed_s is None
    generation.check_late(late_s)
    generation.judge(late_s)
    (record,) = generation.all_records()
    assert (record.kind, record.who) == ("init_timeout", "rank 2 on node 1 (n2)")


def test_a_stopped_rank_is_named_soon_and_given_up_when_nobody_steps() -> None:
    generation = begin(2)
    ready(generation, [0, 1])
    generation.gone(300.0)
    for rank in range(4):
        for event in ("hello", "joined"):
            generation.take(rank // 2, {"type": "event", "event": event, "rank": rank}, 301.0)

    def beat(halted: dict[str, float], now_s: float, **steps: int) -> str:
        return generation.take(1, {"type": "beat", "steps": steps} | ({"halted": halted} if halted else {}), now_s)

    assert beat({"3": 4.0}, 305.0) == ""
    said = beat({"3": 5.5}, 306.0)
    assert said.startswith("rank 3 on node 1 (n2) is stopped (SIGSTOP) for 5 s; SIGCONT to its process lets it go on")
    assert beat({"3": 6.5}, 307.0) == "", "said once"
    assert beat({}, 308.0) == "", "it goes on"
    assert "rank 3" in beat({"3": 5.5}, 360.0)
    generation.take(1, {"type": "beat", "steps": {"2": 7}, "halted": {"3": 61.0}}, 415.0)
    generation.check_late(416.0)
    assert generation.failed_s is None, "somebody does steps, so nobody waits for it"
    beat({"3": 122.0}, 476.0)
    generation.check_late(476.0)
    generation.judge(476.0)
    (record,) = generation.all_records()
    assert (record.kind, record.who) == ("no_progress", "rank 3 on node 1 (n2)")
    assert "has done nothing for 122 s (launch.heartbeat_timeout_s)" in record.message


def ended(verdicts: set[str | None], **outcome: Any) -> Any:
    """What a conductor concludes from what its last generation of ranks said, `late`: time was up before they ended."""
    late = outcome.pop("late", False)
    coordinator = Coordinator(make_spec(deadline=1000.0, deadline_lead_s=120.0), "secret", lambda text: None)
    conductor = conductor_of(coordinator, coordinator.spec, [])
    conductor.late, conductor._verdicts = late, verdicts
    for name, value in outcome.items():
        setattr(conductor.outcome, name, value)
    return conductor._conclude()


@pytest.mark.parametrize(
    ("verdicts", "facts", "verdict", "status", "run_again"),
    [
        ({"finished"}, {"late": True}, "finished", 0, True),
        ({"again"}, {"step_first": 8, "step_last": 8}, "again", 75, True),
        ({"again"}, {"step_first": 8, "step_last": 8, "late": True}, "again", 75, True),
        ({"again"}, {}, "stuck", 78, False),
        ({None}, {"late": True}, "stuck", 78, False),
        ({None}, {"step_first": 8, "step_last": 9, "step_saved": 8, "late": True}, "again", 75, True),
        ({None, "again"}, {"step_first": 8, "step_last": 9, "late": True}, "failed", 1, True),
    ],
)
def test_only_a_run_that_came_further_is_run_again(
    verdicts: set[str | None], facts: dict[str, Any], verdict: str, status: int, run_again: bool
) -> None:
    outcome = ended(verdicts, **facts)
    assert (outcome.verdict, outcome.status, outcome.run_again) == (verdict, status, run_again)
    if facts.get("late") and verdict != "finished" and verdicts != {"again"}:
        assert "time" in outcome.sentence


def test_a_save_makes_the_clock_begin_earlier() -> None:
    """The warning is 120 s ahead; what a save has taken is known to last longer."""
    spec = make_spec(deadline=1000.0, deadline_lead_s=120.0)
    coordinator = Coordinator(spec, "secret", lambda text: None)
    conductor = conductor_of(coordinator, spec, [])
    generation = begin(2)
    conductor._mind_the_clock(generation, 700.0)
    assert not conductor.asked
    generation.take(0, {"type": "event", "event": "saved", "rank": 0, "step": 10, "seconds": 200.0}, 1.0)
    conductor._mind_the_clock(generation, 700.0)
    assert "405 s ahead instead of 120 s, since a save takes 200 s" in conductor.asked
    assert not conductor.late
    conductor._mind_the_clock(generation, 996.0)
    assert conductor.late
