"""Memory cgroups as the kernel shows them, recorded as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainpkg.launch import memory
from trainpkg.launch.memory import Reading

V1 = {
    "proc/7/cgroup": "9:name=systemd:/\n4:memory:/slurm/uid_0/job_7/step_0/task_1\n0::/\n",
    "proc/self/mountinfo": "31 25 0:27 / {top}/sys/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n",
    "sys/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/memory/slurm/uid_0/job_7/memory.limit_in_bytes": "4194304000\n",
    "sys/memory/slurm/uid_0/job_7/memory.max_usage_in_bytes": "4194300000\n",
    "sys/memory/slurm/uid_0/job_7/step_0/task_1/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/memory/slurm/uid_0/job_7/step_0/task_1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
}
JOB = "system.slice/slurmstepd.scope/job_7"
V2 = {
    "proc/7/cgroup": f"0::/{JOB}/step_0/user/task_1\n",
    "proc/self/mountinfo": "29 24 0:26 / {top}/sys rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    f"sys/{JOB}/memory.max": "4194304000\n",
    f"sys/{JOB}/memory.peak": "4194304000\n",
    f"sys/{JOB}/step_0/user/task_1/memory.max": "max\n",
    f"sys/{JOB}/step_0/user/task_1/memory.peak": "3145728000\n",
    f"sys/{JOB}/step_0/user/task_1/memory.events": "low 0\nhigh 0\nmax 91\noom 3\noom_kill 3\noom_group_kill 0\n",
}


def lay(top: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{top}", str(top)))
    (top / "vmstat").write_text("nr_free_pages 7\noom_kill 12\n")


@pytest.mark.failure("F096")
@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_the_count_is_its_own_cgroups_and_the_limit_that_of_whoever_has_one(
    tmp_path: Path, files: dict[str, str]
) -> None:
    lay(tmp_path, files)
    place = memory.find(7, tmp_path / "proc")
    found = memory.read(place, tmp_path / "vmstat")
    assert found.cgroup.endswith("/task_1")
    assert (found.oom_kills, found.limit_mb, found.host_oom_kills) == (3, 4000, 12)
    assert found.peak_mb in (3999, 4000)
    before = Reading(oom_kills=2, host_oom_kills=12)
    assert (found.since(before).oom_kills, found.since(before).host_oom_kills) == (1, 0)


def test_a_part_of_the_tree_that_is_mounted_in_a_container(tmp_path: Path) -> None:
    moved = {name.replace(f"{JOB}/", ""): text for name, text in V2.items()}
    moved["proc/self/mountinfo"] = f"29 24 0:26 /{JOB} {{top}}/sys ro - cgroup2 cgroup2 rw\n"
    lay(tmp_path, moved)
    assert memory.read(memory.find(7, tmp_path / "proc"), tmp_path / "vmstat").oom_kills == 3


def test_no_cgroups_is_no_error(tmp_path: Path) -> None:
    assert memory.find(7, tmp_path) == memory.Place()
    assert memory.read(memory.Place(), tmp_path / "vmstat") == Reading()
    assert memory.find() == memory.find("self")
