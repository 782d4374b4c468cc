"""Which SLURM_ variables exist in a batch script and a step, which only on request, and what a wrong one meant."""

from __future__ import annotations

import difflib
import re

_ALWAYS = """
CLUSTER_NAME CONF CPUS_ON_NODE EXPORT_ENV GTIDS JOBID JOB_ACCOUNT JOB_CPUS_PER_NODE JOB_DEPENDENCY JOB_END_TIME
JOB_EXTRA JOB_GID JOB_GPUS JOB_GROUP JOB_ID JOB_LICENSES JOB_NAME JOB_NODELIST JOB_NODES JOB_NUM_NODES JOB_PARTITION
JOB_QOS JOB_RESERVATION JOB_RESTART_COUNT JOB_SEGMENT_SIZE JOB_START_TIME JOB_UID JOB_USER JOB_COMMENT JWT LOCALID
NNODES NODEID NODELIST NODE_ALIASES OOM_KILL_STEP PRIO_PROCESS PROCID RESTART_COUNT SCRIPT_CONTEXT SUBMIT_DIR
SUBMIT_HOST TASKS_PER_NODE TASK_PID TOPOLOGY_ADDR TOPOLOGY_ADDR_PATTERN UMASK WORKING_CLUSTER GPUS_ON_NODE
SHARDS_ON_NODE CONTAINER HET_SIZE PACK_SIZE JOB_ID_HET_GROUP_0 MULTI_NODE_SELECT
"""
_STEP = """
CPU_BIND CPU_BIND_LIST CPU_BIND_TYPE CPU_BIND_VERBOSE CPU_FREQ_REQ DISTRIBUTION LAUNCH_NODE_IPADDR MEM_BIND
MEM_BIND_LIST MEM_BIND_PREFER MEM_BIND_SORT MEM_BIND_TYPE MEM_BIND_VERBOSE SRUN_COMM_HOST SRUN_COMM_PORT STEPID
STEP_GPUS STEP_ID STEP_LAUNCHER_PORT STEP_NODELIST STEP_NUM_NODES STEP_NUM_TASKS STEP_RESV_PORTS STEP_TASKS_PER_NODE
STEPMGR PTY_PORT PTY_WIN_COL PTY_WIN_ROW PMIXP_ABORT_AGENT_PORT PMIX_MAPPING_SERV
"""
# some sites' prologues set these
_SITES = "TMPDIR SCRATCH LOCAL_SCRATCH LOCALSCRATCH JOBTMP JOB_TMPDIR JOB_SCRATCHDIR SCRATCHDIR LOCALDIR"
# set only where the job was submitted with one of these options
ON_REQUEST = {
    "NTASKS": ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core"),
    "NPROCS": ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core"),
    "NTASKS_PER_NODE": ("ntasks-per-node",),
    "NTASKS_PER_CORE": ("ntasks-per-core",),
    "NTASKS_PER_SOCKET": ("ntasks-per-socket",),
    "NTASKS_PER_GPU": ("ntasks-per-gpu",),
    "NTASKS_PER_TRES": ("ntasks-per-gpu",),
    "CPUS_PER_TASK": ("cpus-per-task",),
    "CPUS_PER_GPU": ("cpus-per-gpu",),
    "GPUS": ("gpus",),
    "GPUS_PER_NODE": ("gpus-per-node",),
    "GPUS_PER_SOCKET": ("gpus-per-socket",),
    "GPUS_PER_TASK": ("gpus-per-task",),
    "GPU_BIND": ("gpu-bind",),
    "GPU_FREQ": ("gpu-freq",),
    "MEM_PER_NODE": ("mem",),
    "MEM_PER_CPU": ("mem-per-cpu",),
    "MEM_PER_GPU": ("mem-per-gpu",),
    "TRES_PER_TASK": ("tres-per-task",),
    "THREADS_PER_CORE": ("threads-per-core",),
    "DIST_PLANESIZE": ("distribution",),
    "OVERCOMMIT": ("overcommit",),
    "PROFILE": ("profile",),
    "ARRAY_JOB_ID": ("array",),
    "ARRAY_TASK_COUNT": ("array",),
    "ARRAY_TASK_ID": ("array",),
    "ARRAY_TASK_MAX": ("array",),
    "ARRAY_TASK_MIN": ("array",),
    "ARRAY_TASK_STEP": ("array",),
}
# names that people expect, and what they want
_MEANT = {
    "JOB_NUMNODES": "JOB_NUM_NODES",
    "NODES": "JOB_NUM_NODES",
    "NUM_NODES": "JOB_NUM_NODES",
    "NUMNODES": "JOB_NUM_NODES",
    "NUM_TASKS": "NTASKS",
    "TASKS": "NTASKS",
    "WORLD_SIZE": "NTASKS",
    "RANK": "PROCID",
    "NODE_RANK": "NODEID",
    "LOCAL_RANK": "LOCALID",
    "NODE_LIST": "JOB_NODELIST",
    "HOSTS": "JOB_NODELIST",
    "NUM_GPUS": "GPUS_ON_NODE",
    "NGPUS": "GPUS_ON_NODE",
}
STEP_ONLY = frozenset(f"SLURM_{name}" for name in _STEP.split())
KNOWN = frozenset(f"SLURM_{name}" for name in [*_ALWAYS.split(), *_SITES.split(), *ON_REQUEST]) | STEP_ONLY
OF_A_TASK = ("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID")


def exists(name: str) -> bool:
    """Whether Slurm sets this variable somewhere. Components of a heterogeneous job have a suffix."""
    return re.sub(r"_(HET|PACK)_GROUP_\d+$", "", name) in KNOWN


def meant(name: str) -> str:
    """The SLURM_ variable that was meant by a name which does not exist; empty where none is near."""
    bare = name.removeprefix("SLURM_")
    if bare in _MEANT:
        return f"SLURM_{_MEANT[bare]}"
    same = [known for known in KNOWN if plain(known) == plain(name)]
    near = same or difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.88)
    return near[0] if near else ""


def plain(name: str) -> str:
    """The name without what people write or leave out at will."""
    return name.upper().removeprefix("SLURM_").removeprefix("JOB_").replace("_", "")
