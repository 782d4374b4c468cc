"""Ranks, offsets and the variables of each rank; flags against the environment; the command line."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainpkg.errors import UserError
from trainpkg.launch import plan as command
from trainpkg.launch.plan import LaunchPlan, make_plan, rank_environment
from trainpkg.launch.topology import resolve_topology

failure = pytest.mark.failure
RACKS = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "rack[1-2]n[1-3],login5",
    "SLURM_NNODES": "7",
    "SLURM_NODEID": "3",
}


@failure("F051")
@failure("F052")
@failure("F058")
@given(st.lists(st.integers(1, 16), min_size=1, max_size=60))
@settings(deadline=None)
def test_ranks_are_a_numbering_without_gaps(counts: list[int]) -> None:
    plan = make_plan([f"n{index}" for index in range(len(counts))], counts)
    envs = [rank_environment(plan, node, local) for node, count in enumerate(counts) for local in range(count)]
    assert [int(env["RANK"]) for env in envs] == list(range(sum(counts)))
    for rank, env in enumerate(envs):
        node = plan.node_of_rank(rank)
        assert (env["NODE_RANK"], env["GROUP_RANK"]) == (str(node.index), str(node.index))
        assert int(env["LOCAL_RANK"]) == rank - node.rank_offset < int(env["LOCAL_WORLD_SIZE"]) == counts[node.index]
        assert (env["WORLD_SIZE"], env["NUM_NODES"]) == (str(sum(counts)), str(len(counts)))
    assert LaunchPlan.from_json(plan.to_json()) == plan


def test_environment_of_a_rank_is_complete() -> None:
    plan = make_plan(["a", "b"], [4, 2], master_addr="10.0.0.1", master_port=12345)
    assert rank_environment(plan, 1, 1) == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "NUM_NODES": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "12345",
    }
    for node, local in ((1, 2), (2, 0), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="is not one of"):
            rank_environment(plan, node, local)


@pytest.mark.parametrize(
    ("hosts", "counts", "text"),
    [
        ([], 1, "1 to 65536 nodes"),
        (["a", "b"], [1], "2 nodes .* ranks for 1"),
        (["a", "b"], [4, 0], r"Node 1 \(b\) has 0 ranks"),
        (["a", "b"], -1, "has -1 ranks"),
        (["a", "b", "a"], 1, "a is named twice"),
        (["a b"], 1, "'a b'"),
    ],
)
def test_impossible_plans(hosts: list[str], counts: int | list[int], text: str) -> None:
    with pytest.raises(UserError, match=text):
        make_plan(hosts, counts)


@failure("F001")
@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "LOCALHOST.localdomain"])
def test_a_master_that_leads_each_node_to_itself_is_refused(address: str) -> None:
    with pytest.raises(UserError, match=r"wait for itself"):
        make_plan(["a", "b"], 1, master_addr=address)
    assert make_plan(["a"], 1, master_addr=address).master_addr == address
    assert make_plan(["sim0", "sim1"], 1, one_machine=True).master_addr == "127.0.0.1"


@failure("F012")
def test_a_blank_in_the_address_is_shown() -> None:
    with pytest.raises(UserError, match=r"' 10\.0\.5\.4'"):
        make_plan(["a", "b"], 1, master_addr=" 10.0.5.4")


@failure("F030")
def test_the_proposed_port_follows_from_the_job_and_lies_below_the_ephemeral_range() -> None:
    ports = {make_plan(["a"], 1, job_id=str(job), generation=0).master_port for job in range(500)}
    assert len(ports) > 480 and min(ports) >= 10_000 and max(ports) < 32_768
    first, again, later = (make_plan(["a"], 1, job_id="7", generation=g).master_port for g in (0, 0, 1))
    assert first == again != later


def test_a_plan_from_elsewhere_is_checked() -> None:
    good = make_plan(["a", "b"], 2).to_dict()
    wrong = [
        good | {"world_size": 5},
        good | {"nodes": [good["nodes"][0], good["nodes"][1] | {"rank_offset": 3}]},
        good | {"nodes": 3},
        good | {"surprise": 1},
        {},
    ]
    for data in wrong:
        with pytest.raises(UserError, match="launch plan"):
            LaunchPlan.from_dict(data)
    for text in ("", "[]", "{"):
        with pytest.raises(UserError, match="launch plan"):
            LaunchPlan.from_json(text)


def test_the_table_shows_this_node_and_leaves_out_the_middle() -> None:
    plan = make_plan([f"n{index}" for index in range(200)], 4)
    table = plan.describe(this_node=150)
    assert len(table.splitlines()) < 50
    assert "n150" in table and "600-603" in table and "<- this node" in table and "not yet proven" in table
    assert "n199" in table and "world size 800 on 200 nodes" in table


@failure("F055")
@pytest.mark.parametrize(
    ("flags", "env", "named"),
    [
        ({"num_nodes": "4"}, {}, ["--num-nodes is 4", "7"]),
        ({"node_rank": "2"}, {}, ["--node-rank is 2", "SLURM_NODEID is 3"]),
        ({"hosts": "rack1n[1-3]"}, {}, ["--hosts is 'rack1n[1-3]'", "rack2n1"]),
        (
            {"gpus_per_node": "8"},
            {"SLURM_GPUS_ON_NODE": "4"},
            ["--gpus-per-node is '8'", "SLURM_GPUS_ON_NODE", "rack2n1"],
        ),
        ({"gpus_per_node": "8"}, {"SLURM_GPUS_PER_NODE": "a100:4"}, ["--gpus-per-node is '8'", "SLURM_GPUS_PER_NODE"]),
        ({"gpus_per_node": "8"}, {"CUDA_VISIBLE_DEVICES": "0"}, ["--gpus-per-node is '8'", "CUDA_VISIBLE_DEVICES"]),
        ({"gpus_per_node": "4(x2),2"}, {}, ["--gpus-per-node is '4(x2),2'", "3 nodes"]),
        ({"num_nodes": "\u0667"}, {}, ["--num-nodes is '\\u0667'"]),
        ({}, {}, ["--gpus-per-node"]),
        ({"hosts": "a,b"}, {"SLURM_JOB_NODELIST": "n["}, ["--hosts is 'a,b'", "SLURM_NNODES", "7"]),
        ({"where": "slurm"}, {"SLURM_JOB_ID": "", "SLURM_JOB_NODELIST": "n1"}, ["SLURM_JOB_ID is not set"]),
    ],
)
def test_flags_and_environment_that_contradict(flags: dict[str, str], env: dict[str, str], named: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        resolve_topology(RACKS | env, **flags)  # type: ignore[arg-type]
    assert all(part in str(caught.value) for part in named), str(caught.value)


@failure("F054")
def test_fewer_ranks_than_gpus_are_mentioned() -> None:
    found = resolve_topology(RACKS | {"SLURM_GPUS_ON_NODE": "8"}, gpus_per_node="4")
    assert found.ranks_per_node == (4,) * 7 and "8 GPUs: some stay idle" in found.warnings[0]


@failure("F042")
def test_hosts_by_flag_where_the_list_cannot_be_read() -> None:
    env = RACKS | {"SLURM_JOB_NODELIST": "n[", "SLURM_NNODES": "2", "SLURM_NODEID": "1"}
    found = resolve_topology(env, hosts="a,b", gpus_per_node="4")
    assert (found.hosts, found.this_node) == (("a", "b"), 1)
    assert "'n['" in found.warnings[0]


def test_gpus_from_slurm_and_from_the_machine() -> None:
    assert resolve_topology(RACKS | {"SLURM_GPUS_PER_NODE": "a100:4"}).ranks_per_node == (4,) * 7
    alike = resolve_topology(RACKS | {"SLURM_GPUS_ON_NODE": "2"})
    assert alike.ranks_per_node == (2,) * 7 and "taken to be alike" in alike.warnings[0]
    here = resolve_topology({"CUDA_VISIBLE_DEVICES": "0,1"})
    assert (here.hosts, here.ranks_per_node, here.this_node, here.where) == (("sim0",), (2,), 0, "local")
    assert resolve_topology({"CUDA_VISIBLE_DEVICES": ""}).ranks_per_node == (1,)
    aside = resolve_topology(RACKS, where="local", num_nodes="2", gpus_per_node="3")
    assert (aside.hosts, aside.ranks_per_node, aside.job_id) == (("sim0", "sim1"), (3, 3), None)


def test_a_foreign_master_address_has_no_effect_and_is_mentioned() -> None:
    found = resolve_topology(RACKS | {"MASTER_ADDR": " 10.0.5.4"}, gpus_per_node="1")
    assert "MASTER_ADDR=' 10.0.5.4'" in found.warnings[0]


def run_plan(env: dict[str, str], *words: str, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    for name in [name for name in os.environ if name.startswith(("SLURM", "CUDA", "MASTER"))]:
        patch.delenv(name)
    for name, value in env.items():
        patch.setenv(name, value)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.main(parser.parse_args(words)) == 0
    return capsys.readouterr().out


def test_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(run_plan(RACKS, "--gpus-per-node", "8", "--json", capsys=capsys, patch=monkeypatch))
    names = ["rack1n1", "rack1n2", "rack1n3", "rack2n1", "rack2n2", "rack2n3", "login5"]
    assert [node["host"] for node in found["nodes"]] == names
    assert found["world_size"] == 56 and found["nodes"][3]["rank_offset"] == 24
    assert found["this_node"] == {"host": "rack2n1", "index": 3, "rank_offset": 24, "num_ranks": 8}
    assert found["master_addr"] == "rack1n1" and found["master_proven"] is False and found["warnings"] == []


def test_command_for_machines_without_slurm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--num-nodes", "4", "--gpus-per-node", "8", "--dist-url", "tcp://10.0.0.1:29500", "c.yaml"]
    text = run_plan({}, *words, capsys=capsys, patch=monkeypatch)
    typed = "python -m trainpkg node --num-nodes 4 --node-rank 3 --gpus-per-node 8 --dist-url tcp://10.0.0.1:29500"
    assert f"on node 3: {typed} --secret-file secret c.yaml" in text and "24-31" in text
    words = ["--hosts", "n[1-2]", "--gpus-per-node", "8,4", "c.yaml", "--run", "r", "--json"]
    found = json.loads(run_plan({}, *words, capsys=capsys, patch=monkeypatch))["commands"]
    assert "--node-rank 1 --gpus-per-node 8,4 --dist-url tcp://n1:29500" in found[2] and found[2].endswith("--run r")
    with pytest.raises(UserError, match="--dist-url is not given"):
        run_plan({}, "c.yaml", capsys=capsys, patch=monkeypatch)


@failure("F046")
def test_command_with_uneven_nodes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--hosts", "n[1-3]", "--gpus-per-node", "4(x2),2", "--node-rank", "2"]
    found = json.loads(run_plan({}, *words, "--json", capsys=capsys, patch=monkeypatch))
    assert [(node["rank_offset"], node["num_ranks"]) for node in found["nodes"]] == [(0, 4), (4, 4), (8, 2)]
    assert "n3                8-9      2  <- this node" in run_plan({}, *words, capsys=capsys, patch=monkeypatch)


def test_nothing_heavy_is_imported() -> None:
    heavy = "{'torch', 'numpy', 'pydantic', 'yaml', 'asyncio', 'snakemake'}"
    code = f"import sys; import trainpkg.launch.plan; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_sixteen_thousand_nodes() -> None:
    env = RACKS | {"SLURM_JOB_NODELIST": "n[00001-16384]", "SLURM_NNODES": "16384"}
    start = time.process_time()
    topology = resolve_topology(env, gpus_per_node="8")
    plan = make_plan(topology.hosts, topology.ranks_per_node)
    assert rank_environment(plan, 16_383, 7)["RANK"] == "131071"
    assert time.process_time() - start < 0.4
