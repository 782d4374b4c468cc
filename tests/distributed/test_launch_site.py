"""A site's surroundings through the real launcher: prologue, wrapper, python, variables; and its secret, nowhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
ON_NODE_0 = "[ $TRAINPKG_NODE_RANK = 0 ]"


def environment_of(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


class SecretSeen:
    """Reads the job's secret where it must be, in the nodes' first environment, and looks for it everywhere else."""

    def __init__(self) -> None:
        self.secret = ""

    def __call__(self, launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        nodes = launch.processes("trainpkg", " node ".replace(" ", "\0"))
        (self.secret,) = {environment_of(pid)["TRAINPKG_SECRET"] for pid in nodes}
        assert len(self.secret) >= 32
        assert len(nodes) == 2
        for pid in set(launch.processes()) - set(nodes):
            told = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
            assert self.secret.encode() not in told, Path(f"/proc/{pid}/cmdline").read_text()

    def where(self, launch: Launch) -> list[str]:
        files = [path for path in launch.folder.rglob("*") if path.is_file()]
        found = [str(path) for path in files if self.secret.encode() in path.read_bytes()]
        assert len(files) > 10
        return [*found, "the output"] if self.secret in launch.output else found


@pytest.mark.failure("F048")
@pytest.mark.failure("F080")
@pytest.mark.failure("F101")
def test_everything_a_site_can_say_reaches_the_ranks_of_all_nodes(tmp_path: Path) -> None:
    """The wrapper leaves nothing in PATH, Slurm's commands least of all, as a container may."""
    python = tmp_path / "python of the site"
    python.write_text(f'#!/bin/sh\nVIA="$0" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    keys: dict[str, Any] = {
        "nodes": 2, "gpus_per_node": 2, "preset": "ethernet", "python": str(python),
        "prologue": ["load() { export LOADED=\"it's $1\"; }", "load torch", f"{ON_NODE_0} || export NCCL_PROTO=LL"],
        "wrapper": f"{shutil.which('env')} WRAPPED=1 PATH=/inside",
        "env": {"OMP_NUM_THREADS": "3", "LAST": "a b", "NCCL_DEBUG": "VERSION"}, "env_prepend": {"PATH": "/opt/site"},
    }  # fmt: skip
    given = {"NCCL_MIN_NRINGS": "4", "NCCL_DEBUG": "INFO", "LAST": "not this", "TEST_STEPS": "40"}
    seen = SecretSeen()
    done = Launch(tmp_path / "run", keys, environment=given).run(seen)
    assert done.status == 0, done.output
    found = json.loads(done.out.read_text())["environment"]
    wanted = {"LOADED": "it's torch", "WRAPPED": "1", "VIA": str(python), "PATH": "/opt/site:/inside", "LAST": "a b"}
    wanted |= {"OMP_NUM_THREADS": "3", "NCCL_DEBUG": "VERSION", "NCCL_IB_DISABLE": "1", "NCCL_MIN_NRINGS": "4"}
    assert wanted.items() <= found.items()
    assert not {"TRAINPKG_SECRET", "TRAINPKG_NODE_RANK"} & set(found)
    for line in (
        "first node sim0; addresses: sim0 127.0.0.1; sim1 127.0.0.1",
        "threads per rank: 3 (launch.env) on all nodes",
        "variables (launch.preset: ethernet) on node 1 (sim1): LAST=a b NCCL_DEBUG=VERSION NCCL_IB_DISABLE=1",
        "warning: all nodes: NCCL_MIN_NRINGS is an old name; today's is NCCL_MIN_NCHANNELS",
        "warning: NCCL_PROTO differs: not set on node 0 (sim0); LL on node 1 (sim1)",
    ):
        assert line in done.output
    log = (tmp_path / "run/launch/1/0/node-1.log").read_text()
    assert "environment: NCCL_PROTO=LL" in log
    assert seen.where(done) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"prologue": ["true", f"{ON_NODE_0} || {{ echo no such module; (exit 3); }}"]},
            f"node 1 (sim1): line 2 of launch.prologue, '{ON_NODE_0} || {{ echo no such module; (exit 3); }}', ended "
            "with status 3; it said: no such module",
        ),
        (
            {"python": "/no/python"},
            "node 0 (sim0): /no/python is not there: launch.python names it; where it comes from a module or conda",
        ),
    ],
)
def test_what_ends_before_the_launcher_runs_is_named(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    done = Launch(tmp_path / "run", {"nodes": 2, **keys}).run()
    assert done.status == 1
    assert words in done.last_line
    assert "did not answer" not in done.output


def test_a_python_without_the_package_says_so(tmp_path: Path) -> None:
    """As one of a container that lets PYTHONPATH not through."""
    keys = {"python": sys._base_executable, "wrapper": "env -u PYTHONPATH", "prologue": ["cd /"]}  # type: ignore[attr-defined]
    done = Launch(tmp_path / "run", keys).run()
    assert done.status == 1
    assert "No module named trainpkg" in done.last_line


def test_gpu_runs_get_their_allocator_and_preset_before_torch_is_imported(tmp_path: Path) -> None:
    spec = {"preload": ["tests.distributed.needs_allocator"]}
    keys = {"device": "cuda", "preset": "infiniband"}
    done = Launch(tmp_path / "run", keys, spec, {"CUDA_VISIBLE_DEVICES": "0,1"}).run()
    assert done.status == 0, done.output
    environment = json.loads(done.out.read_text())["environment"]
    wanted = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "^lo"}
    assert wanted.items() <= environment.items()
    assert environment["LOCAL_WORLD_SIZE"] == "2"
    assert "has no effect" not in done.output


@pytest.mark.failure("F055")
def test_the_number_of_ranks_is_the_allocations_whatever_a_variable_says(tmp_path: Path) -> None:
    given = {"CUDA_VISIBLE_DEVICES": "0,1", "GPUS_PER_NODE": "8"} | dict.fromkeys(["NPROC_PER_NODE"], "2")
    given |= {name: str(os.cpu_count()) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    done = Launch(tmp_path / "run", {"device": "cuda"}, environment=given).run()
    assert done.status == 0, done.output
    assert "2 of 2 ranks joined" in done.output
    assert "warning: the node: GPUS_PER_NODE=8 of the environment is not read: 2 ranks run on this node" in done.output
    assert "NPROC_PER_NODE" not in done.output
