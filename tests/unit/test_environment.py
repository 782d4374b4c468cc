"""Environments as values: threads and their reason, who has the last word, what is told, masked and remarked."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_rollcall import make_facts, make_spec
from trainpkg import presets, variables
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.head.meeting import settings
from trainpkg.launch.node import environment
from trainpkg.launch.slurm import conf
from trainpkg.launch.spec import Spec

ON_SLURM = make_spec(1, where="slurm", cpus_per_task=4)
SNAKEMAKE = dict.fromkeys(environment.SNAKEMAKES_THREADS, "4")


@pytest.mark.failure("F065")
@pytest.mark.parametrize(
    ("spec", "num_cpus", "env", "count", "words"),
    [
        (ON_SLURM, 4, {}, 2, "4 CPUs of the affinity mask / 2 ranks"),
        (ON_SLURM, 64, {}, 2, "4 CPUs asked of Slurm / 2 ranks"),
        (ON_SLURM, 1, {}, 1, "1 CPUs of the affinity mask / 2 ranks"),
        (ON_SLURM, 8, {"OMP_NUM_THREADS": "1"}, 1, "OMP_NUM_THREADS of the environment; 4 CPUs asked of Slurm / 2"),
        (ON_SLURM, 8, {"OMP_NUM_THREADS": "4"}, 2, "OMP_NUM_THREADS=4 of the environment is more than a rank's share"),
        (ON_SLURM, 8, {"OMP_NUM_THREADS": "x"}, 2, "4 CPUs asked of Slurm / 2 ranks"),
        (make_spec(1), 64, {}, 32, "64 CPUs of the affinity mask / 2 ranks"),
        (make_spec(1), 64, SNAKEMAKE, 2, "4 threads of Snakemake's rule / 2 ranks"),
        (make_spec(2), 64, SNAKEMAKE, 1, "4 threads of Snakemake's rule / 4 ranks of 2 simulated nodes"),
        (make_spec(1, env={"OMP_NUM_THREADS": "7"}), 2, SNAKEMAKE, 7, "launch.env"),
    ],
)
def test_threads_are_the_cpus_over_the_ranks(
    spec: Spec, num_cpus: int, env: dict[str, str], count: int, words: str
) -> None:
    node = make_facts(0, num_cpus=num_cpus)
    chosen = environment.threads(spec, node, env)
    assert chosen.count == count
    assert words in chosen.reason
    base = environment.for_imports(spec, node, env)
    assert base["OMP_NUM_THREADS"] == base["MKL_NUM_THREADS"] == str(count)
    if env == SNAKEMAKE:
        assert {base[name] for name in environment.SNAKEMAKES_THREADS} == {str(count)}


def test_what_snakemake_sets_is_what_its_shell_sets() -> None:
    """All six of them, and no other of that kind: else its `threads` would pass for somebody's own number."""
    import inspect

    import snakemake.shell

    text = inspect.getsource(snakemake.shell)
    assert set(environment.SNAKEMAKES_THREADS) == {
        line.split('"')[1] for line in text.splitlines() if line.strip().endswith("= threads") and "envvars[" in line
    }


def base_of(spec: Spec, env: dict[str, str], **node: Any) -> dict[str, str]:
    return environment.for_imports(spec, make_facts(0, **node), env)


def test_who_has_the_last_word() -> None:
    """launch.env, then the node's environment, then the preset, then the launcher."""
    plain = base_of(make_spec(1, preset="infiniband"), {}, device="cuda")
    assert plain["NCCL_DEBUG"] == "WARN"
    assert plain["NCCL_IB_TC"] == "106"
    assert "NCCL_IB_HCA" not in plain
    assert plain["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    site = {"NCCL_DEBUG": "INFO", "NCCL_IB_TC": "41", "PYTORCH_ALLOC_CONF": "backend:native", "PATH": "/bin"}
    assert site.items() <= base_of(make_spec(1, preset="infiniband"), site, device="cuda").items()
    own = {"NCCL_DEBUG": "TRACE", "PYTORCH_ALLOC_CONF": ""}
    both = base_of(make_spec(1, preset="infiniband", env=own), site, device="cuda")
    assert (site | own).items() <= both.items()


def test_a_smoke_test_shows_what_nccl_chose() -> None:
    assert base_of(make_spec(1, preset="infiniband", stage="smoke"), {})["NCCL_DEBUG"] == "INFO"
    assert base_of(make_spec(1, preset="ethernet"), {})["NCCL_IB_DISABLE"] == "1"


@pytest.mark.parametrize("name", environment.ALLOCATOR)
def test_the_allocators_default_is_for_gpus_and_yields_to_every_name_of_it(name: str) -> None:
    assert "PYTORCH_ALLOC_CONF" not in base_of(make_spec(1), {}, device="cpu")
    given = base_of(make_spec(1), {name: "max_split_size_mb:64"}, device="cuda")
    assert [given[other] for other in environment.ALLOCATOR if other in given] == ["max_split_size_mb:64"]
    given = base_of(make_spec(1, env={name: "x"}), {}, device="cuda")
    assert [given[other] for other in environment.ALLOCATOR if other in given] == ["x"]


def test_env_prepend_goes_in_front_once() -> None:
    spec = make_spec(1, env_prepend={"PATH": "/opt/a:/opt/b", "NEW": "/n"}, env={"OTHER": "1"})
    first = base_of(spec, {"PATH": "/bin"})
    assert (first["PATH"], first["NEW"]) == ("/opt/a:/opt/b:/bin", "/n")
    assert base_of(spec, first)["PATH"] == first["PATH"]
    over = make_spec(1, env={"PATH": "/usr/bin"}, env_prepend={"PATH": "/opt"})
    assert base_of(over, {"PATH": "/bin"})["PATH"] == "/opt:/usr/bin"


def told(env: dict[str, str], spec: Spec | None = None, **node: Any) -> NodeFacts:
    """A node's facts as `of_node` completes them."""
    spec, bare = spec or make_spec(1), make_facts(0, **node)
    base = environment.for_imports(spec, bare, env)
    return dataclasses.replace(
        bare, variables=environment.told(spec, base), remarks=environment.remarks(spec, bare, env)
    )


@pytest.mark.failure("F048")
@pytest.mark.failure("F055")
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NCCL_ASYNC_ERROR_HANDLING": "1"}, "is an old name; today's is TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ({"NCCL_MIN_NRINGS": "4"}, "is an old name; today's is NCCL_MIN_NCHANNELS"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "x"}, "is an old name; today's is PYTORCH_ALLOC_CONF"),
        ({"NCCL_IB_DISABEL": "1"}, "nearest name is NCCL_IB_DISABLE"),
        ({"CUDA_VISIBLE_DEVICE": "0"}, "nearest name is CUDA_VISIBLE_DEVICES"),
        ({"nccl_debug": "INFO"}, "names are in capitals: NCCL_DEBUG"),
        ({"NCCL_TREE_THRESHOLD": "0"}, "is read by nothing; NCCL_ALGO chooses algorithms"),
        ({"SLURM_JOB_NUMNODES": "2"}, "Slurm's own name is SLURM_JOB_NUM_NODES"),
        ({"GPUS_PER_NODE": "8"}, "GPUS_PER_NODE=8 of the environment is not read: 2 ranks run on this node"),
    ],
)
def test_what_will_not_do_is_told_with_what_will(env: dict[str, str], words: str) -> None:
    (text,) = told(env).remarks
    assert text.startswith(next(iter(env)))
    assert words in text


def test_good_and_unknown_names_are_not_remarked() -> None:
    fine = dict.fromkeys(variables.KNOWN, "1") | {"NCCL_SHARP_MAX_COMMS": "1", "NCCL_IB_PKEY_VALUE": "1"}
    fine |= {"TORCHINDUCTOR_CACHE_DIR": "/c", "CUDA_VERSION": "13", "GPUS_PER_NODE": "2", "PATH": "/bin", "nccl": "x"}
    assert told(fine).remarks == []


def test_infiniband_switched_off_under_its_preset_is_told() -> None:
    spec = make_spec(1, preset="infiniband")
    (text,) = told({"NCCL_IB_DISABLE": "1"}, spec).remarks
    assert text.startswith("NCCL_IB_DISABLE=1 of the environment wins over launch.preset: infiniband, which means 0")
    assert told({"NCCL_IB_DISABLE": "0"}, spec).remarks == []


def test_the_tables_of_names_hold_together() -> None:
    assert not {*variables.RENAMED, *variables.WITHOUT_EFFECT} & variables.KNOWN
    assert set(variables.RENAMED.values()) <= variables.KNOWN
    assert {one.name for some in presets.PRESETS.values() for one in some} <= variables.KNOWN
    assert [name for name in variables.KNOWN if variables.is_secret(name)] == []


def test_secrets_are_masked_wherever_they_are_shown() -> None:
    spec = make_spec(1, env={"NCCL_MY_TOKEN": "hidden", "SOME_PASSWORD": "hidden", "PLAIN": "seen"})
    node = told({"TORCH_API_KEY": "hidden", "TRAINPKG_SECRET": "hidden", "HF_TOKEN": "hidden"}, spec)
    text = json.dumps(dataclasses.asdict(node)) + str(settings.describe(spec, [node])) + str(environment.lines(node))
    assert "hidden" not in text
    assert "NCCL_MY_TOKEN=***" in text
    assert "PLAIN=seen" in text
    assert "HF_TOKEN" not in text
    assert not variables.is_secret("TOKENIZERS_PARALLELISM")


@pytest.mark.failure("F101")
def test_values_and_versions_that_differ_between_nodes_are_named() -> None:
    old = {"python": "3.11", "torch": "2.13", "trainpkg": "1", "nvidia-nccl-cu13": "2.27.5"}
    nodes = [make_facts(index, variables={"NCCL_PROTO": "LL"}, versions=old) for index in range(3)]
    nodes[1] = dataclasses.replace(nodes[1], variables={}, versions=old | {"nvidia-nccl-cu13": "2.29.7"})
    found = settings.warnings(make_spec(3), nodes)
    assert found == [
        "NCCL_PROTO differs: not set on node 1 (n2); LL on node 0 (n1), node 2 (n3)",
        "the version of nvidia-nccl-cu13 differs: 2.29.7 on node 1 (n2); 2.27.5 on node 0 (n1), node 2 (n3)",
    ]
    assert settings.warnings(make_spec(3), [nodes[0], nodes[2]]) == []


@pytest.mark.failure("F065")
def test_a_node_whose_work_would_share_one_core_is_named() -> None:
    spec = make_spec(2, where="slurm", cpus_per_task=8)
    nodes = [make_facts(0, num_cpus=8), make_facts(1, num_cpus=1)]
    (text,) = settings.warnings(spec, nodes)
    assert text.startswith("node 1 (n2) may use 1 of the 8 CPUs asked of Slurm (slurm.cpus_per_task): all its work")


def test_a_preset_without_nccl_is_told() -> None:
    spec = make_spec(1, preset="infiniband")
    assert "launch.preset: infiniband has no effect" in settings.warnings(spec, [make_facts(0, device="cpu")])[0]
    assert settings.warnings(spec, [make_facts(0, device="cuda")]) == []


def test_what_is_said_at_the_start() -> None:
    nodes = [
        make_facts(index, threads=2 if index else 4, threads_reason="why", variables={"NCCL_DEBUG": "WARN"})
        for index in range(3)
    ]
    assert settings.describe(make_spec(3, preset="ethernet"), nodes) == [
        "first node n1; addresses: n1 127.0.0.1; n2 127.0.0.1; n3 127.0.0.1",
        "threads per rank: 2 (why) on node 1 (n2), node 2 (n3)",
        "threads per rank: 4 (why) on node 0 (n1)",
        "variables (launch.preset: ethernet) on all nodes: NCCL_DEBUG=WARN",
    ]


def test_slurm_conf_comes_back_from_the_same_job_alone(tmp_path: Path) -> None:
    file = tmp_path / "slurm.conf"
    file.write_text("")
    ours, lost = {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "SLURM_CONF": "/nowhere/slurm.conf"}
    other, found = ({"SLURM_JOB_ID": job, "SLURM_CONF": str(file)} for job in ("8", "7"))
    assert conf.find(ours, [{}, ours, lost, other, found]) == str(file)
    assert conf.find(ours, [other, lost]) is None
    assert conf.find({}, [found]) is None
    assert conf.find(ours | {"SLURM_CONF": ""}, [found]) is None


def test_the_environments_of_ancestors() -> None:
    first = next(conf.ancestor_environments(), {})
    assert first.get("PATH") or os.getppid() == 1
