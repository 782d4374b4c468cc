"""What the conductor concludes, without any process: played coordinators, generations and times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_rollcall import make_facts, make_spec
from trainpkg.launch.conduct import Conductor
from trainpkg.launch.failure import Failure, Record, find_cause
from trainpkg.launch.plan import LaunchPlan, make_plan
from trainpkg.launch.rollcall import Coordinator, RollCallError

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
