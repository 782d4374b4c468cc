"""A site's surroundings on a real Slurm: prologue and wrapper through srun, its options, a slurm.conf elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.cluster.test_launch import TWO, SlurmLaunch

pytestmark = pytest.mark.timeout(180)


@pytest.mark.failure("F065")
@pytest.mark.failure("F080")
def test_prologue_wrapper_and_srun_args_on_two_nodes(lab: Lab, shared_dir: Path) -> None:
    """The nodes' processes see no Slurm command, as in a container; there is no slurm.conf in Slurm's own place."""
    elsewhere = shared_dir / "conf"
    for name in ("good", "bad", "lost"):
        (shared_dir / name).mkdir()
    shutil.copytree(lab.work_dir / "etc", elsewhere)
    one_core = "[ $TRAINPKG_NODE_RANK = 0 ] || taskset --cpu-list --pid 0 $$ > /dev/null"
    site: dict[str, Any] = TWO | {
        "prologue": [
            f"pwd > {shared_dir}/cwd-$TRAINPKG_NODE_RANK",
            'export LOADED="$(hostname) it\'s"',
            "echo loaded",
            one_core,
        ],
        "wrapper": "/usr/bin/env WRAPPED=1 PATH=/inside",
        "env_prepend": {"PATH": "/opt/site"},
        "srun_args": f"--chdir={shared_dir} --gpus-per-node=3",
    }
    hide = 'mount -t tmpfs none /etc/slurm; "$@"; exit $?'  # a shell stays above `launch`, as Snakemake does
    under = f"SLURM_CONF={elsewhere}/slurm.conf unshare --mount sh -c '{hide}' sh "
    good = SlurmLaunch(lab, shared_dir / "good", site, "--nodes=2", "--gres=gpu:4", under=under)
    bad = SlurmLaunch(lab, shared_dir / "bad", TWO | {"prologue": ["[ $SLURM_NODEID = 0 ]"]}, "--nodes=2")
    lost = SlurmLaunch(lab, shared_dir / "lost", TWO | {"python": "/no/python"}, "--nodes=2")
    assert good.status() == 0, good.output
    found = json.loads(good.out.read_text())["environment"]
    wanted = {"LOADED": "n1 it's", "WRAPPED": "1", "PATH": "/opt/site:/inside", "CUDA_VISIBLE_DEVICES": "0,1,2"}
    assert wanted.items() <= found.items()
    assert [(shared_dir / f"cwd-{index}").read_text().strip() for index in (0, 1)] == [str(shared_dir)] * 2
    assert "loaded" in (shared_dir / "good/run/launch/1/0/node-1.log").read_text()
    assert f"--chdir={shared_dir} --gpus-per-node=3" in good.output
    assert "threads per rank: 1 (2 CPUs" in good.output
    assert "node 1 (n2) may use 1 of the 2 CPUs asked of Slurm (slurm.cpus_per_task): all its work" in good.output
    assert "warning: slurm.cpus_per_task is 4, but job" in good.output
    assert bad.status() == 1
    assert "node 1 (n2): line 1 of launch.prologue, '[ $SLURM_NODEID = 0 ]', ended with status 1" in bad.output
    assert lost.status() == 1
    assert "/no/python is not there: launch.python names it" in lost.output.splitlines()[-1]
    for job in (good, bad, lost):
        assert "did not answer" not in job.output
        job.nothing_left()
