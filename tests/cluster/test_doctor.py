"""The doctor on a real Slurm: on the submit host, on all nodes of a job, and in a smoke test that it ends."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT
from trainpkg.launch.doctor.script import options

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


def test_the_tables_of_options_are_those_of_slurm(lab: Lab, shared_dir: Path) -> None:
    """No option of this Slurm is missing, none that it lacks is older than it, and abbreviations end alike."""
    newer = {
        "autocomplete", "consolidate-segments", "container-id", "external-launcher", "extra", "launch-cmd",
        "launcher-opts", "oom-kill-step", "resv-ports", "segment", "spread-segments", "stepmgr", "treewidth",
        "tres-bind", "tres-per-task",
    }  # fmt: skip
    for table in (options.SBATCH, options.SRUN):
        told = lab.run([table.program, "--help"], check=False).stdout
        listed = set(re.findall(r"^ +(?:-\w, +)?--([a-z][a-z0-9-]+)", told, re.MULTILINE))
        assert listed
        assert listed <= set(table.takes), listed - set(table.takes)
        words = [*table.takes, *(name[:-1] for name in table.takes if len(name) > 3), "ntask", "node", "no-such"]
        asked = f"{table.program} --$word=1 --usage 2>&1 | grep -E 'option.*is ambiguous|unrecognized option '"
        script = f"for word in {' '.join(words)}; do echo $word $({asked}); done"
        answers = dict(line.partition(" ")[::2] for line in lab.run(["bash", "-c", script]).stdout.splitlines())
        for word in words:
            name, candidates = options.resolve(word, table)
            if "unrecognized" in answers[word]:
                assert not name or set(candidates or (name,)) <= newer, (table.program, word, answers[word])
            elif "ambiguous" in answers[word]:
                assert len(candidates) > 1, (table.program, word, answers[word])
            else:
                assert name or len(set(candidates) - newer) < 2, (table.program, word, answers[word])
