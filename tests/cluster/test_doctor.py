"""The doctor on a real Slurm: on the submit host, on all nodes of a job, and in a smoke test that it ends."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT

pytestmark = pytest.mark.timeout(120)
DOCTOR = [sys.executable, "-m", "trainpkg", "doctor"]
PATH = {"PYTHONPATH": str(CHECKOUT)}


def test_on_the_submit_host_slurm_is_asked(lab: Lab, shared_dir: Path) -> None:
    done = lab.run([*DOCTOR, "--json"], env=PATH, cwd=shared_dir, check=False)
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert rows["Slurm's programs"]["verdict"] == "ok"
    assert rows["Slurm's controller"]["verdict"] == "ok"
    assert rows["clock, controller"]["verdict"] == "ok"
    assert "pmi2" in rows["Slurm's MPI types"]["found"]
    accounting = rows["Slurm's accounting"]
    assert (accounting["verdict"], "slurm-status-command: squeue" in accounting["fix"]) == ("warn", True)


@pytest.mark.failure("F113")
@pytest.mark.failure("F101")
def test_nodes_are_looked_at_compared_and_refused(lab: Lab, shared_dir: Path) -> None:
    realm = lab.realms["n2"]
    realm.script("mount -o remount,size=1m /dev/shm\nip link set eth0 mtu 1400")
    given = {"stage": "smoke", "launch": {"where": "slurm", "nodes": 2, "gpus_per_node": 1}}
    given |= {"spec": {"entry": "tests.distributed.entries:steps", "preload": ["json"]}}
    out = shared_dir / "run/smoke.json"
    smoke = [sys.executable, "-m", "tests.distributed.launched", str(out), json.dumps(given)]
    log = shared_dir / "log"
    script = f"cd {CHECKOUT}\n{shlex.join([*DOCTOR, '--nodes'])}; echo doctor $?\n{shlex.join(smoke)}; echo smoke $?"
    try:
        lab.wait_job(lab.sbatch(script, "--nodes=2", f"--output={log}"), timeout=60)
    finally:
        realm.script("mount -o remount,size=64m /dev/shm\nip link set eth0 mtu 1500")
    by_hand, _, in_smoke = log.read_text().partition("doctor 1\n")
    for said in (by_hand, in_smoke):
        assert "bad   /dev/shm on n2" in said, log.read_text()
        assert "1 MiB, " in said
    assert "interface to the first node differs" in in_smoke
    assert "mtu 1500 on n1; mtu 1400 on n2" in in_smoke
    assert "smoke test failed at 'nodes': /dev/shm on n2: 1 MiB" in in_smoke
    assert in_smoke.endswith("smoke 1\n")
    assert json.loads((shared_dir / "run/smoke/launch/1/smoke.failed.json").read_text())["ok"] is False
    assert not list((shared_dir / "run").glob("**/rank-*.log"))
