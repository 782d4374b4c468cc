"""How long nodes are waited for, and what is said of those that do not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.test_rollcall import make_facts, make_spec
from trainpkg.launch.facts import RollCallError
from trainpkg.launch.head.meeting import missing
from trainpkg.launch.head.meeting.member import Member
from trainpkg.launch.head.meeting.missing import Waiting, last_words
from trainpkg.launch.head.steps.command import OnTheWay
from trainpkg.launch.slurm.ask import is_down, parse_node_states
from trainpkg.launch.spec import Spec

failure = pytest.mark.failure


class Writer:
    """A connection that nobody uses."""


THERE = {0: Member(make_facts(0), cast(Any, Writer()), "10.0.0.1")}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """Three nodes of Slurm, of which nobody knocks at any."""

    async def knock(host: str) -> str:
        return "its machine is up"

    monkeypatch.setattr(missing, "knock", knock)
    found = make_spec(3, where="slurm", launch_dir=str(tmp_path))
    found.generation_dir(0).mkdir()
    return found


def check(waiting: Waiting, there: Mapping[int, Member] = THERE, ended: str = "", way: OnTheWay | None = None) -> str:
    """The sentence that ends the waiting, or nothing while it goes on."""
    try:
        asyncio.run(waiting.check(there, ended, way or OnTheWay()))
    except RollCallError as error:
        return str(error)
    return ""


def test_a_node_that_gives_up_is_named_with_its_own_words_long_before_the_deadline(spec: Spec) -> None:
    log = spec.generation_dir(0) / "node-2.log"
    log.write_text("12:00:01 node 2 is n3\n12:00:01 warning: the error: is not one\n")
    waiting = Waiting(spec, lambda text: None)
    waiting.answered()
    assert check(waiting) == ""
    log.write_text(log.read_text() + "12:00:09 error: n3 cannot reach the coordinator (10.0.0.1: no answer)\n")
    waiting._next_look_s = 0.0
    said = check(waiting)
    assert said.startswith(
        "node 2 (n3) did not answer the roll call: n3 cannot reach the coordinator (10.0.0.1: no ans"
    )
    assert "Answered: node 0 (n1)" in said


def test_the_cause_is_the_node_that_gave_up_and_not_the_one_that_was_ended_for_it(spec: Spec) -> None:
    waiting = Waiting(spec, lambda text: None)
    waiting.answered()
    waiting.gone("node 0 (n1)")
    assert check(waiting) == ""  # for a moment
    (spec.generation_dir(0) / "node-1.log").write_text("12:00:09 error: no route\n")
    assert check(waiting, ended="srun ended").startswith("node 1 (n2) did not answer the roll call: no route")


def test_a_node_that_answers_and_leaves_is_named_when_nobody_says_more(spec: Spec) -> None:
    waiting = Waiting(spec, lambda text: None)
    waiting.left = ("node 0 (n1)", time.monotonic() - 60)
    assert check(waiting) == "node 0 (n1) answered the roll call and then its connection ended"


def test_at_the_deadline_each_missing_node_has_what_slurm_and_its_machine_say(spec: Spec) -> None:
    def states(hosts: Sequence[str]) -> dict[str, str]:
        assert list(hosts) == ["n2", "n3"]
        return {"n2": "MIXED+DRAIN (bad fan)"}

    (spec.generation_dir(0) / "node-1.log").write_text("12:00:01 node 1 is n2\n")
    waiting = Waiting(spec, lambda text: None, states)
    waiting.answered()
    waiting.deadline_s = 0.0
    said = check(waiting)
    assert "node 1 (n2), node 2 (n3) did not answer the roll call within 0.5 s of the first answer" in said
    assert "node 1 (n2): Slurm says MIXED+DRAIN (bad fan), its machine is up, its launcher ran and fell silent" in said
    assert "node 2 (n3): its machine is up, its launcher never ran: its log is absent" in said


def test_nodes_of_one_fate_are_named_together(spec: Spec) -> None:
    waiting = Waiting(spec, lambda text: None)
    said = check(waiting, ended="srun ended")
    assert "node 1 (n2), node 2 (n3): its machine is up, its launcher never ran" in said


def test_a_node_that_slurm_holds_for_gone_is_not_waited_for(spec: Spec) -> None:
    said: list[str] = []
    asked: list[list[str]] = []

    def states(hosts: Sequence[str]) -> dict[str, str]:
        asked.append(list(hosts))
        return {"n2": "IDLE", "n3": "DOWN* (Not responding)"}

    waiting = Waiting(spec, said.append, states)
    waiting.answered()
    waiting.deadline_s = time.monotonic() + 60
    assert check(waiting) == "" and not asked
    waiting._next_look_s = 0.0
    waiting.first_s = time.monotonic() - missing.ASK_SLURM_S - 1
    text = check(waiting)
    assert "before Slurm held it for gone" in text and "node 2 (n3): Slurm says DOWN* (Not responding)" in text
    assert said == [
        "still waiting for 2 node(s): node 1 (n2, Slurm says IDLE), node 2 (n3, Slurm says DOWN* (Not responding))"
    ]


def test_slurm_is_asked_once_while_waiting(spec: Spec) -> None:
    asked: list[Any] = []
    waiting = Waiting(spec, lambda text: None, lambda hosts: asked.append(hosts) or {})
    waiting.answered()
    waiting.deadline_s = time.monotonic() + 60
    waiting.first_s = 0.1
    for _ in range(3):
        waiting._next_look_s = 0.0
        assert check(waiting) == ""
    assert len(asked) == 1


def test_a_busy_shell_lengthens_the_patience_and_a_failed_one_ends_it(spec: Spec) -> None:
    waiting = Waiting(spec, lambda text: None)
    waiting.answered()
    waiting.deadline_s = 0.0
    assert check(waiting, way=OnTheWay(busy={1: "node 1 (n2), which is in line 1"})) == ""
    assert check(waiting, way=OnTheWay(failed=["node 1 (n2): line 1 ended with status 127"])).endswith("status 127")


def test_words_of_a_log_that_is_torn_or_long(spec: Spec) -> None:
    log = spec.generation_dir(0) / "node-1.log"
    assert last_words(spec, 1) is None
    log.write_bytes(b"x" * 100_000 + b"\n12:00:00 error: first\n12:00:01 error: caf\xe9 second")
    assert (last_words(spec, 1) or "").endswith("second")


LINES = """\
NodeName=n1 Arch=x86_64 CPUAlloc=0 OS=Linux 6.18 #1 SMP State=IDLE ThreadsPerCore=1 Comment=a b CfgTRES=cpu=8,mem=8000M
NodeName=n2 State=DOWN*+DRAIN ThreadsPerCore=1 ExtSensorsTemp=n/s Reason=bad fan = 3 [root@2026-11-30T02:38:09] Extra=1
NodeName=n3 State=MIXED Partitions=main
"""


def test_states_and_reasons_out_of_scontrols_lines() -> None:
    assert parse_node_states(LINES) == {
        "n1": "IDLE",
        "n2": "DOWN*+DRAIN (bad fan = 3, root@2026-11-30T02:38:09)",
        "n3": "MIXED",
    }
    assert parse_node_states("") == parse_node_states("Node n9 not found\n") == {}


@pytest.mark.parametrize(
    ("state", "down"),
    [("IDLE", False), ("MIXED+DRAIN", False), ("ALLOCATED", False), ("DOWN", True), ("DOWN*", True), ("IDLE*", True),
     ("IDLE+NOT_RESPONDING", True), ("ALLOCATED+DRAIN (DOWN by hand)", False), ("FAILING", False)],
)  # fmt: skip
def test_which_states_mean_that_no_launcher_will_come(state: str, down: bool) -> None:
    assert is_down(state) is down
