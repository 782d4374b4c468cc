"""What the conductor concludes, without any process: played coordinators, generations and times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_rollcall import make_facts, make_spec
from trainpkg.launch.facts import RollCallError
from trainpkg.launch.head.conduct import Conductor
from trainpkg.launch.head.failure import Failure, Record, find_cause
from trainpkg.launch.head.generation import Generation
from trainpkg.launch.head.rollcall import Coordinator
from trainpkg.launch.head.watch import Watch
from trainpkg.launch.plan import LaunchPlan, make_plan
from trainpkg.launch.spec import Timeouts

KILLED = Record("signal", 1, "n2", 0.0, rank=3, step=7, signal=9)


class Silent:
    """A screen that nobody reads."""

    def say(self, text: str) -> None:
        pass

    def progress(self, step: int, total: int | None) -> None:
        pass


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
        return await Conductor(coordinator, coordinator.spec, nodes, Silent(), lambda index: None).run()

    outcome = asyncio.run(run())
    assert (outcome.verdict, outcome.status) == ("failed", 137)
    assert outcome.failure is not None
    assert outcome.failure.rank == 3
    assert "rank 3 on node 1 (n2) was killed by SIGKILL at step 7" in outcome.sentence
    assert "(no restart in place: node 0 (n1) cannot open a port for the ranks)" in outcome.sentence


def begin(num_nodes: int) -> Generation:
    """A generation at time 0: 600 s to import, 60 s to join, two ranks per node."""
    spec = make_spec(num_nodes, timeouts=Timeouts(start_s=600, init_s=60), preload=["torch"])
    return Generation(spec, plan_of(spec.hosts), 0, Watch(60.0, 0.0), ("the start", 0.0), lambda index: None)


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
    (record,) = generation.all_records()
    assert (record.kind, record.who) == ("init_timeout", "rank 2 on node 1 (n2)")
