"""Heterogeneous jobs: as Slurm 22.05 describes them in a script's environment and in `scontrol show job`."""

from __future__ import annotations

import pytest

from tests.unit.test_rollcall import make_spec
from trainpkg.errors import UserError
from trainpkg.launch.head.steps import places
from trainpkg.launch.slurm import het
from trainpkg.launch.slurm.allocation import read_allocation
from trainpkg.launch.slurm.ask import split_fields
from trainpkg.launch.topology import resolve_topology

SCRIPT = {
    "SLURM_JOB_ID": "1",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_NODELIST": "n1",
    "SLURM_NNODES": "1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_JOB_CPUS_PER_NODE": "8",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "1(x2)",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "8",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "64(x2)",
}
STEP = {  # of `srun --het-group=0,1` in it: Slurm puts the parts together by itself
    "SLURM_JOB_ID": "1",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_NNODES": "3",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_NODEID": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
}
SHOWN = """\
JobId=2 HetJobId=1 HetJobOffset=1 JobState=RUNNING NodeList=n[2-3] BatchHost=n2 NumNodes=2 NumCPUs=128 TresPerNode=gpu:2
JobId=1 HetJobId=1 HetJobOffset=0 JobState=RUNNING NodeList=n1 BatchHost=n1 NumNodes=1 NumCPUs=8 TresPerNode=gpu:1
"""


def test_a_script_sees_all_parts_in_their_order() -> None:
    found = read_allocation(SCRIPT)
    assert found is not None
    assert found.hosts == found.job_hosts == ("n1", "n2", "n3")
    assert (found.num_nodes, found.node_rank, found.in_step) == (3, 0, False)
    assert (found.tasks_per_node, found.cpus_per_node, found.warnings) == ((1, 1, 1), (8, 64, 64), ())


def test_a_step_over_all_parts_and_one_over_a_part() -> None:
    whole = read_allocation(STEP)
    assert whole is not None and (whole.hosts, whole.node_rank) == (("n1", "n2", "n3"), 2)
    part = STEP | {"SLURM_JOB_NODELIST": "n[2-3]", "SLURM_STEP_NODELIST": "n[2-3]", "SLURM_NODEID": "1"}
    part |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), "2")
    found = read_allocation(part)
    assert found is not None and (found.hosts, found.node_rank) == (("n2", "n3"), 1)


def test_ordinary_jobs_and_leftovers() -> None:
    assert read_allocation(SCRIPT | {"SLURM_HET_SIZE": "1"}) == read_allocation(
        {name: value for name, value in SCRIPT.items() if "HET" not in name}
    )
    with pytest.raises(UserError, match="SLURM_HET_SIZE is 3, but SLURM_JOB_NODELIST_HET_GROUP_2 is not set"):
        read_allocation(SCRIPT | {"SLURM_HET_SIZE": "3"})
    for value in ("x", "-1", "129", " 2"):
        with pytest.raises(UserError, match="SLURM_HET_SIZE is"):
            read_allocation(SCRIPT | {"SLURM_HET_SIZE": value})
    with pytest.raises(UserError, match="SLURM_JOB_NODELIST is 'n1,n1'"):
        read_allocation(SCRIPT | {"SLURM_JOB_NODELIST_HET_GROUP_1": "n1"})


def test_plan_counts_over_all_parts() -> None:
    found = resolve_topology(SCRIPT, gpus_per_node="1,4(x2)")
    assert (found.hosts, found.ranks_per_node, found.this_node) == (("n1", "n2", "n3"), (1, 4, 4), 0)


def test_the_parts_out_of_scontrols_lines() -> None:
    fields, parts = het.merge([split_fields(line) for line in SHOWN.splitlines()])
    assert parts == [(0, "1", 1), (1, "2", 2)]
    assert (fields["NodeList"], fields["NumNodes"], fields["NumCPUs"]) == ("n1,n[2-3]", "3", "24")  # the fewest CPUs
    assert het.whole_job({"JobId": "7", "NodeList": "n1"}) == ({"JobId": "7", "NodeList": "n1"}, [])
    with pytest.raises(UserError, match="shows none of its parts"):
        het.merge([])


PARTS = [(0, "1", 1), (1, "2", 2)]
HOSTS = ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("hosts", "taken"), [(HOSTS, PARTS), (["n1"], PARTS[:1]), (["n2", "n3"], PARTS[1:]), (["n9"], [])]
)
def test_whole_parts_are_taken(hosts: list[str], taken: list[het.Part]) -> None:
    assert het.parts_for(PARTS, hosts, HOSTS, "spawn") == taken
    assert het.parts_for([], hosts, HOSTS, "srun") == []


def test_half_a_part_and_backends_of_one_part_are_refused() -> None:
    with pytest.raises(UserError, match=r"launch.nodes = 2 ends inside part 1 .* parts of 1 \+ 2 nodes.* to 1 or 3$"):
        het.parts_for(PARTS, HOSTS[:2], HOSTS, "spawn")
    with pytest.raises(UserError, match=r"launch.backend = 'srun' in a heterogeneous job \(parts of 1 \+ 2 nodes\)"):
        het.parts_for(PARTS, HOSTS, HOSTS, "srun")


def test_srun_starts_on_all_nodes_of_the_parts() -> None:
    spec = make_spec(3, where="slurm", slurm_job_id="1", het=[list(part) for part in PARTS])
    words = places.srun_command(spec, HOSTS)
    assert words[:3] == ["srun", "--het-group=0,1", "--ntasks-per-node=1"]
    assert not [word for word in words if word.startswith(("--nodes", "--ntasks=", "--nodelist"))]
    assert het.variables(spec.parts) == {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_ID_HET_GROUP_0": "1",
        "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
        "SLURM_JOB_ID_HET_GROUP_1": "2",
        "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
    }
    assert het.variables([]) == {}
