"""launch.port and launch.master_addr: what the config refuses, and what reaches the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.distributed.launched import make_run
from trainpkg.launch.head import attempt, planning
from trainpkg.launch.head.attempt import Folder
from trainpkg.launch.slurm import control

failure = pytest.mark.failure
OUT = Path("/nowhere/runs/r/train.json")


@pytest.mark.parametrize(
    ("port", "ports"), [(29_500, [29_500, 29_500]), ("20000-20100", [20_000, 20_100]), ("7-7", [7, 7]), (None, None)]
)
def test_ports_of_a_site_reach_the_nodes(port: Any, ports: list[int] | None) -> None:
    spec = attempt.make_spec(make_run(OUT, port=port), Folder.of("train", OUT), ["sim0"], "local")
    assert spec.ports == ports
    assert spec.port_range == (None if ports is None else tuple(ports))


@failure("F012")
@pytest.mark.parametrize(
    "port", ["", " 29500", "0", "65536", "20100-20000", "1-2-3", "a", "1e3", "\u0661", "20000-", "-5"]
)
def test_bad_ports_are_quoted(port: str) -> None:
    with pytest.raises(ValidationError, match=r"is neither a port .29500. nor a range") as caught:
        make_run(OUT, port=port)
    assert repr(port) in str(caught.value) and "launch.port" in str(caught.value)


@failure("F012")
@pytest.mark.parametrize("address", ["", " 10.0.5.4", "10.0.5.4 ", "n1:29500", "[fd00::1]", "tcp://n1", "a,b", "n1\n"])
def test_bad_addresses_are_quoted(address: str) -> None:
    with pytest.raises(ValidationError, match="is neither a host name nor an address") as caught:
        make_run(OUT, master_addr=address)
    assert repr(address) in str(caught.value)


@pytest.mark.parametrize("address", ["10.0.5.4", "n1", "n1.site.org", "fd00::1", "fe80::1%eth0", "127.0.0.1"])
def test_good_addresses_reach_the_nodes(address: str) -> None:
    run = make_run(OUT, master_addr=address)
    assert attempt.make_spec(run, Folder.of("train", OUT), ["sim0"], "local").master_addr == address


@failure("F001")
@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1", "localhost.localdomain", "0.0.0.0"])
def test_loopback_for_several_nodes_of_slurm_is_refused_with_the_config(address: str) -> None:
    with pytest.raises(ValidationError, match=r"launch.nodes = 2: each node would wait for itself"):
        make_run(OUT, master_addr=address, nodes=2, where="slurm")
    make_run(OUT, master_addr=address, nodes=1, where="slurm")


@failure("F049")
def test_a_launch_inside_a_smaller_step_uses_its_nodes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"NodeList": "n[1-4]", "NumNodes": "4", "NumCPUs": "32", "EndTime": "Unknown"}
    monkeypatch.setattr(control, "ask_slurm", lambda job: shown)
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "4"}
    env |= {"SLURM_STEP_NODELIST": "n[2-3]", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}
    run = make_run(OUT, where="slurm", nodes=2)
    spec, job_hosts, remarks = planning.plan_attempt(run, Folder.of("train", OUT), "slurm", env, {})
    assert (spec.hosts, job_hosts) == (["n2", "n3"], ["n2", "n3"])
    assert len(remarks) == 1 and "SLURM_STEP_NODELIST is 'n[2-3]': 2 of the job's 4 nodes" in remarks[0]
