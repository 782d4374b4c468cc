"""Ranks as tasks of a step: command lines and environments of srun and mpirun, and which way MPI is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launched import make_run
from tests.unit.test_rollcall import make_facts, make_spec
from trainpkg.config import Launch, site
from trainpkg.errors import UserError
from trainpkg.launch import facts, subnet
from trainpkg.launch.head.steps import mpi, places, rank_steps
from trainpkg.launch.head.steps.mpi import Found
from trainpkg.launch.plan import LaunchPlan, make_plan
from trainpkg.launch.spec import Spec
from trainpkg.launch.start import mpi as rank_mpi

OPEN_4, OPEN_5 = "Open MPI v4.1.4, package: Debian OpenMPI", "Open MPI v5.0.7, package: Debian OpenMPI"
MPICH = "MPICH Version: 4.0.2"
LISTED = ("none", "pmi2", "pmix", "pmix_v4")


def spec_and_plan(counts: list[int], **more: Any) -> tuple[Spec, LaunchPlan]:
    spec = make_spec(len(counts), **({"where": "slurm", "cpus_per_task": 8, "slurm_job_id": "7"} | more))
    return spec, make_plan(spec.hosts, counts, master_addr="10.0.0.1", master_port=6000, generation=2)


@pytest.mark.failure("F065")
@pytest.mark.failure("F067")
@pytest.mark.failure("F068")
def test_srun_is_told_where_each_rank_runs() -> None:
    spec, plan = spec_and_plan([2, 2])
    assert rank_steps.srun_command(spec, plan, ["n1", "n2"]) == [
        "srun", "--ntasks=4", "--nodes=2", "--ntasks-per-node=2", "--distribution=block", "--cpus-per-task=4",
        "--cpu-bind=none", "--mem=0", "--overlap", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "--label",
        "--unbuffered", "--job-name=train-r-ranks",
    ]  # fmt: skip
    assert "--nodelist=n1,n2" in rank_steps.srun_command(spec, plan, ["n1", "n2", "n3"])


@pytest.mark.failure("F045")
@pytest.mark.failure("F046")
@pytest.mark.failure("F058")
def test_uneven_nodes_are_told_task_by_task() -> None:
    spec, plan = spec_and_plan([1, 3, 1])
    command = rank_steps.srun_command(spec, plan, ["n1", "n2", "n3", "n4"])
    assert command[1:4] == ["--ntasks=5", "--distribution=arbitrary", "--cpus-per-task=2"]
    assert not any(word.startswith(("--nodes", "--ntasks-per-node")) for word in command)
    assert rank_steps.host_file(plan) == "n1\nn2\nn2\nn2\nn3\n"


@pytest.mark.failure("F010")
def test_ranks_that_do_not_begin_on_the_first_node_are_told_so() -> None:
    spec = make_spec(2, where="slurm", mpi="mpirun", mpirun="Open MPI", cpus_per_task=8)
    plan = make_plan(spec.hosts, [2, 2], master_addr="10.0.0.2", master_port=6000, rank_order=[1, 0])
    assert "--distribution=arbitrary" in rank_steps.srun_command(spec, plan, spec.hosts)
    assert rank_steps.host_file(plan) == "n2\nn2\nn1\nn1\n"
    assert rank_steps.mpirun_command(spec, plan, None, {})[2] == "n2:2,n1:2"


def test_more_ranks_than_cpus_and_gpus_that_must_be_asked_for() -> None:
    spec, plan = spec_and_plan([4, 4], cpus_per_task=2, step_gpus=4, mpi="pmi2")
    command = rank_steps.srun_command(spec, plan, spec.hosts)
    assert {"--cpus-per-task=1", "--overcommit", "--gres=gpu:4", "--mpi=pmi2"} <= set(command)
    spec, plan = spec_and_plan([4, 4], step_gpus=4, srun_args="--gpus-per-task=1 --gpu-bind closest --network=ib")
    command = rank_steps.srun_command(spec, plan, spec.hosts)
    assert command[-4:] == ["--gpus-per-task=1", "--gpu-bind", "closest", "--network=ib"]
    assert "--gres=gpu:4" not in command


@pytest.mark.failure("F059")
@pytest.mark.failure("F061")
def test_what_binds_gpus_to_ranks_is_not_said_to_the_step_of_one_task_per_node() -> None:
    spec, _ = spec_and_plan([4, 4], srun_args="--gpus-per-task=1 --gpu-bind closest --network=ib -C a")
    assert places.srun_command(spec, spec.hosts)[-3:] == ["--network=ib", "-C", "a"]
    bound = {"srun_args": "--gpu-bind=closest --cpu-bind=cores"}
    assert site.disagreements(Launch(backend="srun", **bound)) == []
    assert site.disagreements(Launch(backend="mpi", mpi="pmix", **bound)) == []
    assert len(site.disagreements(Launch(**bound))) == 2
    assert len(site.disagreements(Launch(backend="srun", devices=(0, 1), **bound))) == 2
    assert len(site.disagreements(Launch(backend="srun", srun_args="--distribution=cyclic"))) == 1


def test_backends_that_cannot_work_where_the_config_says() -> None:
    assert "has no effect" in site.disagreements(Launch(mpi="pmix"))[0]
    assert "rules out" in site.disagreements(Launch(backend="srun", where="local"))[0]
    assert "say mpirun" in site.disagreements(Launch(backend="mpi", mpi="pmi2", where="local"))[0]
    with pytest.raises(UserError, match=r"launch.backend = 'srun' starts each rank as a task of a Slurm job"):
        mpi.spec_fields(Launch(backend="srun"), False, {})
    with pytest.raises(UserError, match="Nodes that are typed one by one start their own"):
        mpi.refuse_typed("mpi")
    assert mpi.spec_fields(Launch(), True, {}) == {}


def test_a_task_is_a_guard_of_its_generation_behind_the_prologue() -> None:
    spec, _ = spec_and_plan([1], python="/opt/py", prologue=["module load x"], launch_dir="/r/launch/1")
    command = rank_steps.guard_command(spec, 2)
    assert "module load x" in command[4]
    assert command[6:] == [
        "/opt/py", "-m", "trainpkg.launch.start.guard", "--spec=/r/launch/1/spec.json", "--generation=2",
    ]  # fmt: skip


@pytest.mark.failure("F025")
def test_mpirun_is_told_hosts_counts_and_the_network() -> None:
    spec, plan = spec_and_plan([2, 3], mpi="mpirun", mpirun="Open MPI")
    env = {"PATH": "/bin", "PYTHONPATH": "/x", "HOME": "/"}
    assert rank_steps.mpirun_command(spec, plan, "10.0.0.0/24", env) == [
        "mpirun", "--host", "n1:2,n2:3", "-np", "5", "--map-by", "slot", "--bind-to", "none", "--tag-output",
        "-x", "PATH", "-x", "PYTHONPATH",
        "--mca", "oob_tcp_if_include", "10.0.0.0/24", "--mca", "btl_tcp_if_include", "10.0.0.0/24",
    ]  # fmt: skip
    assert "--mca" not in rank_steps.mpirun_command(spec, plan, None, env)
    local, plan = spec_and_plan([2, 3], where="local", mpi="mpirun", mpirun="Open MPI")
    assert rank_steps.mpirun_command(local, plan, None, env)[1:5] == ["--host", "localhost:5", "-np", "5"]
    hydra, plan = spec_and_plan([2, 3], mpi="mpirun", mpirun="MPICH")
    assert rank_steps.mpirun_command(hydra, plan, None, env)[:5] == ["mpirun", "-hosts", "n1:2,n2:3", "-n", "5"]


@pytest.mark.failure("F025")
def test_the_network_is_one_that_all_nodes_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = spec_and_plan([1, 1])
    assert subnet.subnet_of("127.0.0.1") == "127.0.0.0/8"
    assert subnet.subnet_of("198.51.100.1") is None
    monkeypatch.setattr(subnet, "subnet_of", lambda address: "10.0.0.0/24")
    docker = "172.17.0.1"  # the same on every host
    near, far = (make_facts(1, addresses=[docker, address, "fd00::2"]) for address in ("10.0.0.2", "10.0.1.2"))
    first = make_facts(0, addresses=["10.0.0.1", docker])
    assert rank_steps.common_subnet(plan, [first, near]) == "10.0.0.0/24"
    assert rank_steps.common_subnet(plan, [first, far]) is None


def test_mpirun_finds_the_job_that_its_environment_no_longer_tells() -> None:
    """Snakemake's jobstep leaves the job's number alone; an outer MPI launcher's variables would make it a child."""
    spec, plan = spec_and_plan([2, 2, 1], mpi="mpirun", mpirun="Open MPI")
    given = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "9", "SLURM_CONF": "/c", "PATH": "/bin", "OMPI_MCA_btl": "tcp"}
    given |= {
        "OMPI_COMM_WORLD_RANK": "3",
        "PMIX_RANK": "3",
        "PMI_FD": "5",
        "PRTE_LAUNCHED": "1",
        "MPI_LOCALRANKID": "0",
    }
    env = rank_steps.mpirun_environment(spec, plan, given, is_root=False)
    assert env == {
        "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_CONF": "/c", "PATH": "/bin", "OMPI_MCA_btl": "tcp",
        "SLURM_NODELIST": "n1,n2,n3", "SLURM_JOB_NODELIST": "n1,n2,n3", "SLURM_NNODES": "3",
        "SLURM_JOB_NUM_NODES": "3", "SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_OVERLAP": "1",
        "SLURM_MPI_TYPE": "none", "SLURM_CPU_BIND": "none",
    }  # fmt: skip
    local, plan = spec_and_plan([2], where="local", mpi="mpirun")
    env = rank_steps.mpirun_environment(local, plan, given, is_root=True)
    assert not any(name.startswith("SLURM_") for name in env)  # mpirun would look for nodes of that job
    assert env["OMPI_ALLOW_RUN_AS_ROOT"] == env["PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


@pytest.mark.parametrize(
    ("wanted", "found", "way"),
    [
        ("auto", Found(True, LISTED, {}, "mpirun (Open MPI) 4.1.4", OPEN_4), "pmix"),
        ("auto", Found(True, LISTED, {}, "HYDRA build details:", MPICH), "pmi2"),
        ("auto", Found(True, LISTED, {}, "", ""), "pmix"),  # mpi4py lives in the nodes' container
        ("auto", Found(True, LISTED, {"pmix": "can not load PMIx"}, "mpirun (Open MPI) 4.1.4", OPEN_4), "mpirun"),
        ("auto", Found(True, ("none",), {}, "mpirun (Open MPI) 4.1.4", OPEN_4), "mpirun"),
        ("auto", Found(False, (), {}, "mpirun (Open MPI) 4.1.4", OPEN_4), "mpirun"),
        ("pmi2", Found(True, LISTED, {}, "", OPEN_4), "pmi2"),  # a site's own may have been built with it
        ("mpirun", Found(True, LISTED, {}, "mpirun (Open MPI) 5.0.7", OPEN_5), "mpirun"),
    ],
)
def test_the_way_that_fits_what_is_there(wanted: str, found: Found, way: str) -> None:
    assert mpi.choose(wanted, found) == way


@pytest.mark.failure("F070")
@pytest.mark.failure("F072")
@pytest.mark.parametrize(
    ("wanted", "found", "text"),
    [
        ("mpirun", Found(False, (), {}, "HYDRA build details:", OPEN_4), "mpirun is MPICH's and mpi4py loads Open MPI"),
        ("auto", Found(False, (), {}, "mpirun (Open MPI) 4.1.4", MPICH), "mpirun is Open MPI's and mpi4py loads MPICH"),
        ("auto", Found(False), "there is no mpirun in PATH"),
        ("pmix", Found(False, (), {}, "mpirun (Open MPI) 4.1.4", OPEN_4), "srun --mpi=pmix needs a Slurm job"),
        ("pmix", Found(True, ("none", "pmi2"), {}, "", OPEN_4), "`srun --mpi=list` says none, pmi2"),
        ("pmix", Found(True, LISTED, {"pmix": "Invalid MPI type"}, "", OPEN_4), "cannot load it (Invalid MPI type)"),
        ("pmi2", Found(True, LISTED, {}, "", OPEN_5), "set launch.mpi: pmix"),
    ],
)
def test_what_would_give_singletons_is_refused_before_it_starts(wanted: str, found: Found, text: str) -> None:
    with pytest.raises(UserError) as caught:
        mpi.choose(wanted, found)
    assert text in str(caught.value)
    assert "mpi4py" in str(caught.value)


def test_types_in_sruns_list_new_and_old() -> None:
    new = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n"
    assert mpi.parse_types(new) == ("pmix", "none", "pmi2")
    assert mpi.parse_types("srun: MPI types are...\nsrun: none\nsrun: pmi2\n") == ("none", "pmi2")


def test_the_programs_of_this_machine_are_asked(tmp_path: Path) -> None:
    """`srun --mpi=list` lists what lies in a folder; that it cannot be loaded shows in a step alone."""
    broken = "srun: error:  mpi/pmix_v4: init: pmi/pmix: can not load PMIx library"
    scripts = {
        "srun": f"[ $1 = --mpi=list ] && exec echo pmix; echo '{broken}' >&2; exit 1",
        "mpirun": "echo; echo 'mpirun (Open MPI) 4.1.4'",
        "py": "echo warning >&2; echo 'Open MPI v4.1.4'",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    found = mpi.find(True, str(tmp_path / "py"), {"PATH": f"{tmp_path}:/bin:/usr/bin"})
    unloadable = {"pmix": "mpi/pmix_v4: init: pmi/pmix: can not load PMIx library"}
    assert found == Found(True, ("pmix",), unloadable, "mpirun (Open MPI) 4.1.4", "Open MPI v4.1.4")
    assert mpi.choose("auto", found) == "mpirun"


@pytest.mark.failure("F072")
def test_mpi_libraries_that_differ_between_nodes_are_named() -> None:
    spec = make_spec(2, mpi="pmix")
    nodes = [make_facts(0), make_facts(1)]
    for node, version in zip(nodes, (OPEN_4, MPICH), strict=True):
        node.versions[facts.MPI] = version
    (told,) = facts.contradictions(spec, nodes)
    assert "the version of the MPI library differs" in told
    for text in (f"{OPEN_4} on node 0 (n1)", f"{MPICH} on node 1 (n2)"):
        assert text in told
    assert facts.contradictions(make_spec(2), [make_facts(0), make_facts(1)]) == []


@pytest.mark.failure("F025")
def test_open_mpi_keeps_to_the_interface_that_leads_to_the_master() -> None:
    env = rank_mpi.environment("127.0.0.1", 6000, {"PATH": "/bin", "OMPI_MCA_pml": "ucx"})
    assert env == {
        "PATH": "/bin", "OMPI_MCA_pml": "ucx", "OMPI_MCA_btl": "self,tcp",
        "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo",
    }  # fmt: skip


def test_the_local_rank_of_mpi_counts_where_its_groups_are_the_nodes() -> None:
    nodes = [{"rank_offset": 0, "num_ranks": 2}, {"rank_offset": 2, "num_ranks": 2}]
    found = {"rank": 3, "size": 4, "local_rank": 0, "local_size": 2}
    assert rank_mpi.in_plan(found, nodes, one_machine=False).local_rank == 0  # a contradiction, for the node to name
    alone = {"rank": 3, "size": 4, "local_rank": 0, "local_size": 1}  # an MPI without shared memory
    assert rank_mpi.in_plan(alone, nodes, one_machine=False).local_rank == 1
    simulated = {"rank": 3, "size": 4, "local_rank": 3, "local_size": 4}
    me = rank_mpi.in_plan(simulated, nodes, one_machine=True)
    assert (me.rank, me.local_rank) == (3, 1)
    assert me.describe() == "rank 3 of 4, local rank 1 of 2, as MPI says (MPI_Comm_rank=3, MPI_Comm_size=4)"


def test_of_a_long_complaint_the_telling_lines_are_kept() -> None:
    lines = ["-----", "The application appears", "", "*** An error occurred in MPI_Init", "more", "more", "and more"]
    assert rank_mpi.telling(lines) == ["*** An error occurred in MPI_Init", "The application appears", "more"]


def test_run_with_these_backends_is_a_valid_config(tmp_path: Path) -> None:
    assert make_run(tmp_path / "a/train.json", backend="mpi", mpi="mpirun").launch.mpi == "mpirun"
