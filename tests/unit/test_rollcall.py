"""The roll call in one process: a coordinator and nodes that behave, lie, keep silent or are no nodes at all."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from trainpkg.launch import wire
from trainpkg.launch.facts import NodeFacts, RollCallError
from trainpkg.launch.head.meeting.rollcall import Coordinator
from trainpkg.launch.node.call import parse_head
from trainpkg.launch.slurm.grammar import expand_counts, run_lengths
from trainpkg.launch.spec import Spec, Timeouts

SECRET = "s" * 64


def make_spec(num_nodes: int = 2, **more: Any) -> Spec:
    values: dict[str, Any] = {
        "stage": "train", "run": "r", "run_dir": "/r", "out": "/r/o", "config_path": "/r/c", "attempt": 1,
        "num_nodes": num_nodes, "hosts": [f"n{index + 1}" for index in range(num_nodes)], "where": "local",
        "launch_dir": "/r/launch/1", "timeouts": Timeouts(rollcall_s=0.5, start_s=1.0),
    }  # fmt: skip
    return Spec(**(values | more))


def make_facts(index: int, **more: Any) -> NodeFacts:
    values: dict[str, Any] = {"host": f"n{index + 1}", "pid": 100 + index, "num_ranks": 2, "device": "cpu"}
    values |= {"versions": {"python": "3.11", "torch": "2.13", "trainpkg": "1"}, "addresses": ["127.0.0.1"]}
    return NodeFacts(index=index, **(values | {"clock_unix_s": time.time()} | more))


async def answer(port: int, facts: NodeFacts, secret: str = SECRET, tag: str | None = None) -> tuple[Any, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await wire.present(reader, writer, secret, tag or make_spec().tag)
    writer.write(wire.encode({"type": "facts", **dataclasses.asdict(facts)}))
    return reader, writer


def roll_call(
    spec: Spec, body: Callable[[int], Awaitable[Any]], say: Callable[[str], None] = lambda text: None
) -> list[NodeFacts]:
    """Hold a roll call while `body(port)` plays the nodes."""

    async def run() -> list[NodeFacts]:
        coordinator = Coordinator(spec, SECRET, say)
        port = parse_head(await coordinator.listen())[1]
        playing = asyncio.ensure_future(body(port))
        try:
            return await coordinator.meet(lambda: "")
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await coordinator.close()

    return asyncio.run(run())


async def hold(*facts: NodeFacts, port: int) -> None:
    kept = [await answer(port, one) for one in facts]
    await asyncio.sleep(60)
    del kept


def test_nodes_in_any_order_come_out_in_node_order() -> None:
    met = roll_call(make_spec(3), lambda port: hold(make_facts(2), make_facts(0), make_facts(1), port=port))
    assert [node.index for node in met] == [0, 1, 2]


@pytest.mark.parametrize(
    ("spec", "facts", "words"),
    [
        (make_spec(3), [make_facts(0), make_facts(2)],
         ["node 1 (n2) did not answer the roll call within 0.5 s of the first", "node 0 (n1), node 2 (n3)"]),
        (make_spec(2), [], ["node 0 (n1), node 1 (n2) did not answer", "within 1 s (launch.start_timeout_s)", "none"]),
        (make_spec(3), [make_facts(0), make_facts(1), make_facts(1, host="nX", pid=7)],
         ["two nodes say that they are node 1: n2 (process 101", "nX (process 7"]),
        (make_spec(2), [make_facts(0), make_facts(1, versions={"python": "3.12", "torch": "2.13", "trainpkg": "1"})],
         ["the version of python differs: 3.1", "3.12 on node 1 (n2)", "3.11 on node 0 (n1)"]),
        (make_spec(2), [make_facts(0, code_hash="a"), make_facts(1, code_hash="b")],
         ["the code of trainpkg", "b on node 1 (n2)"]),
        (make_spec(2), [make_facts(0), make_facts(1, device="cuda")], ["the device differs"]),
        (make_spec(2), [make_facts(0, trouble="0 GPUs are visible")], ["node 0 (n1): 0 GPUs are visible"]),
        (make_spec(2), [make_facts(5)], ["says that it is node 5, but the nodes are 0 to 1"]),
        (make_spec(4), [make_facts(24, num_ranks=8)],
         ["node 24, but the nodes are 0 to 3; 24 looks like its first rank (3 x 8): the index counts nodes, here 3"]),
    ],
)  # fmt: skip
def test_contradictions_and_missing_nodes_are_named(spec: Spec, facts: list[NodeFacts], words: list[str]) -> None:
    with pytest.raises(RollCallError) as caught:
        roll_call(spec, lambda port: hold(*facts, port=port))
    for word in words:
        assert word in str(caught.value)


GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 99 + b"\n", b"{" * 100_000, b"[" * 50_000 + b"\n", b"[]\n",
    b'{"a":1}\n',
    rb'{"nonce":"a","tag":"b","proof":"\ud800"}' + b"\n", rb'{"nonce":"\ud800","tag":"\udfff","proof":"a"}' + b"\n",
)  # fmt: skip


def test_strangers_disturb_nobody() -> None:
    """50 silent ones, garbage, wrong secrets, a line without an end: the nodes meet in well under the 5 s of one."""
    said: list[str] = []

    async def play(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for wrong in ("", "t" * 64):
            with pytest.raises(wire.Refused):
                await answer(port, make_facts(0), secret=wrong)
        for garbage in GARBAGE:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(garbage)
        await hold(make_facts(0), make_facts(1), port=port)
        del silent

    begin = time.monotonic()
    assert len(roll_call(make_spec(2), play, said.append)) == 2
    assert time.monotonic() - begin < 3
    assert any("wrong secret" in line for line in said)


@pytest.mark.parametrize("line", GARBAGE)
def test_garbage_is_a_stranger_s(line: bytes) -> None:
    """Not another exception, which would be taken for a node of ours, or printed as a traceback."""

    async def ask() -> None:
        reader = asyncio.StreamReader(limit=wire.MAX_LINE)
        reader.feed_data(line)
        reader.feed_eof()
        await wire.admit(reader, Mock(drain=AsyncMock()), SECRET, "tag")

    with pytest.raises(wire.Stranger):
        asyncio.run(ask())


def test_a_node_of_another_attempt_ends_the_roll_call_by_name() -> None:
    async def play(port: int) -> None:
        await answer(port, make_facts(0), tag="train of r, attempt 2")

    with pytest.raises(RollCallError, match="belongs to 'train of r, attempt 2', this is 'train of r, attempt 1'"):
        roll_call(make_spec(2), play)


def test_a_node_that_leaves_during_the_roll_call_is_named() -> None:
    async def play(port: int) -> None:
        _, writer = await answer(port, make_facts(0))
        await asyncio.sleep(0.1)
        writer.close()

    with pytest.raises(RollCallError, match=r"node 0 \(n1\) answered the roll call and then its connection ended"):
        roll_call(make_spec(2), play)


def test_last_words_reach_a_node_that_still_has_something_to_say() -> None:
    """It writes after the coordinator has said good-bye, and reads later still: nothing may be lost in between."""

    async def run() -> Any:
        coordinator = Coordinator(make_spec(), SECRET, lambda text: None)
        reader, writer = await answer(parse_head(await coordinator.listen())[1], make_facts(0))
        await coordinator.inbox.get()
        coordinator.goodbye(1, "why")
        closing = asyncio.ensure_future(coordinator.close())
        for _ in range(3):
            await asyncio.sleep(0.05)
            writer.write(wire.encode({"type": "beat", "generation": 0, "steps": {}}))
        words = await wire.receive(reader)
        writer.close()
        await closing
        return words

    assert asyncio.run(run()) == {"type": "bye", "status": 1, "sentence": "why"}


def test_a_node_refuses_a_listener_without_the_secret() -> None:
    async def run() -> None:
        other = Coordinator(make_spec(), "another secret", lambda text: None)
        port = parse_head(await other.listen())[1]
        with pytest.raises(wire.Refused):
            await answer(port, make_facts(0))
        await other.close()

    asyncio.run(run())


def test_a_proof_serves_one_side_one_job_one_connection() -> None:
    good = wire.proof(SECRET, "node", "job", "a", "b")
    for other in (
        wire.proof(SECRET, "head", "job", "a", "b"),
        wire.proof(SECRET, "node", "jop", "a", "b"),
        wire.proof(SECRET, "node", "job", "c", "b"),
        wire.proof("x", "node", "job", "a", "b"),
    ):
        assert good != other


@pytest.mark.parametrize("counts", [[1], [8, 8, 8], [3, 1], [1, 1, 4, 4, 4, 1]])
def test_run_lengths_are_what_the_grammar_reads(counts: list[int]) -> None:
    assert expand_counts(run_lengths(counts)) == counts


def test_sixteen_thousand_nodes_fit_into_one_line() -> None:
    wire.encode({"type": "go", "counts": run_lengths([1, 2] * 8192), "generation": 3})


def test_texts_are_cut_by_the_bytes_of_their_json() -> None:
    for text in ("a" * 50_000, "\x00" * 50_000, "ü€😀" * 9_000, '"\\' * 20_000):
        short = wire.shorten(text, 5_000)
        assert len(json.dumps(short)) <= 5_002
        assert text.endswith(short)
        assert len(json.dumps(short)) > 4_900 or len(short) == len(text)


def test_the_spec_survives_its_file(tmp_path: Path) -> None:
    from trainpkg.launch import spec as specs

    spec = make_spec(env={"A": "b"}, deadline=12.5)
    spec.write(tmp_path / "spec.json")
    tree = json.loads((tmp_path / "spec.json").read_text()) | {"a_newer_key": 1}
    (tmp_path / "spec.json").write_text(json.dumps(tree))
    assert specs.read(tmp_path / "spec.json") == spec
