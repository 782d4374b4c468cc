"""The files of the lab's Slurm: what they say, and writing them. Starts none of its daemons."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.machine import clean_environment

CPUS_PER_NODE = 8
MEMORY_MB_PER_NODE = 8000
NETWORK = "10.77.0"


def node_names(num_nodes: int) -> list[str]:
    return [f"n{index}" for index in range(1, num_nodes + 1)]


def node_address(index: int) -> str:
    """Address of node n{index}; index 0 is the controller, which is the submit host as well."""
    return f"{NETWORK}.{10 + index}" if index else f"{NETWORK}.1"


def node_mac(index: int) -> str:
    """A machine keeps its MAC over a power cut; with a new one its peers would talk to the old for half a minute."""
    return f"02:00:00:00:00:{index:02x}"


def hosts(num_nodes: int) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost", f"{node_address(0)} ctl"]
    lines += [f"{node_address(index)} n{index}" for index in range(1, num_nodes + 1)]
    return "\n".join(lines) + "\n"


def slurm_conf(work_dir: Path, num_nodes: int, gpus_per_node: int, extra: Mapping[str, object]) -> str:
    """`extra` replaces or adds lines, for instance `{"SlurmdTimeout": 10}`."""
    keys: dict[str, object] = {
        "ClusterName": "lab",
        "SlurmctldHost": f"ctl({node_address(0)})",
        "AuthType": "auth/munge",
        # cred_expire also is what a requeued job waits before it starts again (120 s by default)
        "AuthInfo": f"socket={work_dir}/run/munge.socket,cred_expire=5",
        "CredType": "cred/munge",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "StateSaveLocation": f"{work_dir}/state",
        "SlurmdSpoolDir": f"{work_dir}/spool/%n",
        "SlurmctldPidFile": f"{work_dir}/run/slurmctld.pid",
        "SlurmdPidFile": f"{work_dir}/run/slurmd.%n.pid",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_Memory",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "MpiDefault": "none",
        "JobRequeue": 1,
        "ReturnToService": 2,
        "SlurmctldTimeout": 30,
        "SlurmdTimeout": 30,
        "KillWait": 5,
        "MinJobAge": 300,
        "MailProg": "/bin/true",
        "GresTypes": "gpu",
        "SlurmdParameters": "config_overrides",  # the CPUs and memory below, whatever the machine has
    }
    keys.update(extra)
    if "AccountingStorageHost" in keys:
        keys["AccountingStoragePass"] = f"{work_dir}/run/munge.socket"
    lines = [f"{key}={value}" for key, value in keys.items()]
    gres = f" Gres=gpu:fake:{gpus_per_node}" if gpus_per_node else ""
    for index, name in enumerate(node_names(num_nodes), start=1):
        lines.append(
            f"NodeName={name} NodeAddr={node_address(index)} CPUs={CPUS_PER_NODE}"
            f" RealMemory={MEMORY_MB_PER_NODE}{gres} State=UNKNOWN"
        )
    lines.append(f"PartitionName=main Nodes=n[1-{num_nodes}] Default=YES MaxTime=INFINITE State=UP")
    lines.append(f"PartitionName=smoke Nodes=n[1-{min(2, num_nodes)}] MaxTime=30 State=UP")
    return "\n".join(lines) + "\n"


def accounting_conf() -> dict[str, object]:
    """Lines of slurm.conf with which jobs are accounted for in a database (`slurmdbd_conf`)."""
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": node_address(0),
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": 1,
    }


def slurmdbd_conf(work_dir: Path) -> str:
    """The database's daemon on the submit host; MariaDB answers on a socket, to root, whom it knows by the socket."""
    keys = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={work_dir}/run/munge.socket",
        "DbdHost": "ctl",
        "DbdAddr": node_address(0),
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm",
        "PidFile": f"{work_dir}/run/slurmdbd.pid",
    }
    return "".join(f"{key}={value}\n" for key, value in keys.items())


def gres_conf(work_dir: Path, num_nodes: int, gpus_per_node: int) -> str:
    if not gpus_per_node:
        return ""
    return f"NodeName=n[1-{num_nodes}] Name=gpu Type=fake File={work_dir}/gpu/nvidia[0-{gpus_per_node - 1}]\n"


def cgroup_conf(slurm_version: str) -> str:
    """`slurm_version` as `slurmd -V` says it: "slurm-wlm 22.05.8"."""
    major, minor = slurm_version.split()[-1].split(".")[:2]
    return f"CgroupPlugin={'disabled' if (int(major), int(minor)) >= (23, 11) else 'cgroup/v1'}\n"


def write_files(work_dir: Path, num_nodes: int, gpus_per_node: int, extra: Mapping[str, object]) -> None:
    """Everything that the daemons want to find in the work directory; `etc` is what becomes /etc/slurm."""
    work_dir.chmod(0o755)
    spools = [f"spool/{node}" for node in node_names(num_nodes)]
    for name in ("etc", "log", "run", "state", "spool", "gpu", "shared", *spools):
        (work_dir / name).mkdir()
    environment = clean_environment(work_dir)
    version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True, env=environment).stdout
    (work_dir / "etc/slurm.conf").write_text(slurm_conf(work_dir, num_nodes, gpus_per_node, extra))
    (work_dir / "etc/gres.conf").write_text(gres_conf(work_dir, num_nodes, gpus_per_node))
    (work_dir / "etc/cgroup.conf").write_text(cgroup_conf(version))
    (work_dir / "hosts").write_text(hosts(num_nodes))
    for index in range(gpus_per_node):
        os.mknod(work_dir / f"gpu/nvidia{index}", 0o20666, os.makedev(1, 3))  # as good as /dev/null
    key = work_dir / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
