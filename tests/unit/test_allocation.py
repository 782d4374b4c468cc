"""What is read from Slurm's environment, and which contradictions are noticed."""

from __future__ import annotations

import pytest

from trainpkg.errors import UserError
from trainpkg.launch.slurm.allocation import read_allocation, require_one_task

failure = pytest.mark.failure

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4"}
STEP = JOB | {
    "SLURM_STEP_NODELIST": "n[2-3]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "n3",
}


def test_outside_slurm_there_is_none() -> None:
    assert read_allocation({}) is None
    assert read_allocation({"SLURM_CONF": "/x", "SLURM_JOB_ID": ""}) is None


def test_job() -> None:
    env = JOB | {"SLURM_NODEID": "3", "SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_JOB_CPUS_PER_NODE": "72(x3),36"}
    found = read_allocation(env)
    assert found is not None
    assert found.hosts == found.job_hosts == ("n1", "n2", "n3", "n4")
    assert (found.num_nodes, found.node_rank, found.in_step) == (4, 3, False)
    assert (found.tasks_per_node, found.cpus_per_node) == ((2, 2, 2, 1), (72, 72, 72, 36))
    assert (found.restart_count, found.deadline, found.warnings) == (0, None, ())


@failure("F049")
def test_a_smaller_step_counts_before_the_job_and_is_mentioned() -> None:
    found = read_allocation(STEP | {"SLURM_JOB_CPUS_PER_NODE": "8,16,32,64"})
    assert found is not None
    assert (found.hosts, found.num_nodes, found.node_rank, found.in_step) == (("n2", "n3"), 2, 1, True)
    assert found.job_hosts == ("n1", "n2", "n3", "n4")
    assert (found.tasks_per_node, found.cpus_per_node) == ((1, 1), (16, 32))
    assert len(found.warnings) == 1 and "2 of the job's 4 nodes" in found.warnings[0]


def test_the_shell_of_salloc_is_a_step_of_one_node_that_does_not_count() -> None:
    interactive = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_NODES": "1"}
    for num_nodes in ("1", "4"):
        found = read_allocation(JOB | interactive | {"SLURM_NODEID": "0", "SLURM_NNODES": num_nodes})
        assert found is not None
        assert (len(found.hosts), found.num_nodes, found.in_step, found.warnings) == (4, 4, False, ())


def test_a_rules_shell_under_snakemake_knows_its_job_only() -> None:
    found = read_allocation({"SLURM_JOB_ID": "7"})
    assert found is not None
    assert (found.hosts, found.num_nodes, found.node_rank) == ((), None, None)


@failure("F048")
@failure("F003")
def test_names_that_mean_something_else_are_not_read() -> None:
    env = JOB | {"SLURM_JOB_NUMNODES": "9", "SLURM_LAUNCH_NODE_IPADDR": "10.9.9.9", "SLURM_NPROCS": "77"}
    assert read_allocation(env) == read_allocation(JOB)


def test_deadline_and_restarts() -> None:
    found = read_allocation(JOB | {"SLURM_JOB_END_TIME": "1750000000", "SLURM_RESTART_COUNT": "2"})
    assert found is not None and (found.deadline, found.restart_count) == (1_750_000_000.0, 2)
    unlimited = read_allocation(JOB | {"SLURM_JOB_END_TIME": "4294967295"})
    assert unlimited is not None and unlimited.deadline is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"SLURM_NNODES": "7"}, ["SLURM_NNODES is '7'", "SLURM_JOB_NODELIST='n[1-4]' has 4 hosts"]),
        ({"SLURM_JOB_NUM_NODES": "3"}, ["SLURM_JOB_NUM_NODES is '3'", "SLURM_JOB_NODELIST"]),
        ({"SLURM_NODEID": "4"}, ["SLURM_NODEID is '4'", "4 nodes"]),
        ({"SLURM_NODEID": "0", "SLURMD_NODENAME": "n2"}, ["SLURM_NODEID is '0'", "n1", "SLURMD_NODENAME is 'n2'"]),
        ({"SLURM_STEP_NODELIST": "n[2-3]", "SLURM_STEP_NUM_NODES": "3"}, ["SLURM_STEP_NUM_NODES", "'n[2-3]'"]),
        ({"SLURM_STEP_NODELIST": "m1"}, ["SLURM_STEP_NODELIST is 'm1'", "SLURM_JOB_NODELIST='n[1-4]'"]),
        ({"SLURM_JOB_NODELIST": "n[1-2],n[2-3]"}, ["SLURM_JOB_NODELIST", "n2 twice"]),
        ({"SLURM_JOB_ID": ""}, ["SLURM_JOB_NODELIST is 'n[1-4]'", "SLURM_JOB_ID is not set"]),
    ],
)
def test_contradictions_name_both_sides(change: dict[str, str], named: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        read_allocation(JOB | change)
    assert all(part in str(caught.value) for part in named), str(caught.value)


def test_counts_that_differ_without_a_list() -> None:
    with pytest.raises(UserError, match="SLURM_JOB_NUM_NODES is '2' but SLURM_NNODES is '3'"):
        read_allocation({"SLURM_JOB_ID": "7", "SLURM_NNODES": "3", "SLURM_JOB_NUM_NODES": "2"})


NUMBERS = ["JOB_ID", "NNODES", "NODEID", "JOB_END_TIME", "RESTART_COUNT", "LOCALID"]
COUNTS = ["TASKS_PER_NODE", "JOB_CPUS_PER_NODE", "GPUS_ON_NODE", "GPUS_PER_NODE"]


@pytest.mark.parametrize("name", [f"SLURM_{name}" for name in (*NUMBERS, *COUNTS)])
@pytest.mark.parametrize("value", [" ", " 1", "1 ", "-1", "\u0661", "1\n", "1.0", "0x1", "9" * 40])
def test_bad_values_are_quoted_with_their_variable(name: str, value: str) -> None:
    with pytest.raises(UserError, match=f"^{name} is ") as caught:
        read_allocation(JOB | {name: value})
    assert ascii(value) in str(caught.value)


def test_counts_for_other_nodes_are_set_aside_and_mentioned() -> None:
    found = read_allocation(JOB | {"SLURM_TASKS_PER_NODE": "4(x2)"})
    assert found is not None and found.tasks_per_node == ()
    assert "SLURM_TASKS_PER_NODE is '4(x2)'" in found.warnings[0]


@failure("F059")
@failure("F061")
def test_bindings_that_hide_gpus_are_mentioned() -> None:
    found = read_allocation(STEP | {"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "2,3"})
    assert found is not None and (found.gpus_on_node, found.devices) == (4, ("2", "3"))
    assert "CUDA_VISIBLE_DEVICES is '2,3' (2 devices)" in found.warnings[-1]
    identifiers = read_allocation(JOB | {"CUDA_VISIBLE_DEVICES": "MIG-1f3c,GPU-77aa"})
    assert identifiers is not None and identifiers.devices == ("MIG-1f3c", "GPU-77aa")


@failure("F033")
@pytest.mark.parametrize("change", [{"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, {"SLURM_LOCALID": "1"}])
def test_a_launcher_per_rank_is_refused(change: dict[str, str]) -> None:
    found, wrong = read_allocation(STEP), read_allocation(STEP | change)
    assert found is not None and wrong is not None
    require_one_task(found)
    with pytest.raises(UserError, match="--ntasks-per-node=1"):
        require_one_task(wrong)
