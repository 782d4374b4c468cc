"""Sections that say where a run is executed: launching, Slurm, the smoke test."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator

from trainpkg.config.keys import Section, execution
from trainpkg.template import uses_entry


def parse_ports(text: str) -> tuple[int, int]:
    """First and last port of `29500` or `20000-20100`."""
    match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < first <= last <= 65_535:
        raise ValueError(f"{text!r} is neither a port (29500) nor a range of ports (20000-20100) between 1 and 65535")
    return first, last


def checked_ports(text: str) -> str:
    parse_ports(text)
    return text


def checked_address(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.\-]+)?", text):
        raise ValueError(
            f"{text!r} is neither a host name nor an address; blanks, brackets and a port do not belong to it"
        )
    return text


Ports = Annotated[str, AfterValidator(checked_ports)]


SIGNAL_EARLY_S = 60.0  # Slurm looks once a minute


class Launch(Section):
    """Where ranks run and how they start."""

    where: Literal["auto", "slurm", "local"] = execution("auto", "auto: Slurm inside a Slurm job, else this machine.")
    nodes: int = execution(1, "Nodes; simulated on one machine where there is no Slurm.", ge=1)
    gpus_per_node: int | None = execution(
        None, "GPUs (processes on a CPU run) per node; left out: all that the node shows, one process on a CPU.", ge=1
    )
    device: Literal["auto", "cpu", "cuda"] = execution("auto", "What torch uses; auto: cuda where a node shows GPUs.")
    devices: tuple[int, ...] | None = execution(None, "Subset of each node's visible GPUs, by position.", min_length=1)
    backend: Literal["spawn", "torchrun", "torchrun-static", "srun", "mpi", "command"] = execution(
        "spawn",
        "How ranks start. spawn: each node's launcher starts its own; torchrun: with c10d rendezvous; torchrun-static; "
        "srun: one Slurm task per rank; mpi: srun with PMI or mpirun; command: any program, once per node.",
    )
    command: str | None = execution(
        None,
        "What backend command starts once per node, split as a shell would; {rank_offset} {world_size} {node_rank} "
        "{num_nodes} {gpus_per_node} {master_addr} {master_port} {dist_url} {hosts} {run} {run_dir} {python} are "
        "filled in, and {entry}: what it shall start so that ranks are ours (-m MODULE). Without {entry} it is the "
        "training itself.",
    )
    mpi: Literal["auto", "pmix", "pmi2", "mpirun"] = execution("auto", "How backend mpi starts; auto: what is there.")
    start: Literal["fork", "exec"] = execution("fork", "fork: from one process that imported torch; exec: one each.")
    oversubscribe: bool = execution(False, "Allow more ranks than GPUs on a node (gloo alone; nccl refuses it).")
    dist_backend: Literal["auto", "gloo", "nccl"] = execution("auto", "auto: nccl on GPUs, gloo on CPUs.")
    env: dict[str, str] = execution(
        {},
        "Variables set before anything is imported. They have the last word; then come the node's own environment (and "
        "what the prologue exports), the preset, the launcher's defaults.",
    )
    env_prepend: dict[str, str] = execution(
        {}, "Put in front of what comes out of all that, with a colon between, as for PATH."
    )
    preset: Literal["none", "ethernet", "infiniband"] = execution(
        "none", "NCCL settings of a kind of network (table below); what the environment or launch.env say wins."
    )
    prologue: tuple[str, ...] = execution(
        (), "Lines that bash runs on each node before its launcher, in one shell: modules, conda; all must succeed."
    )
    wrapper: str | None = execution(None, "Prefix of each node's launcher, such as `apptainer exec --nv IMAGE`.")
    python: str | None = execution(
        None, "Python of node processes and ranks, with trainpkg's dependencies; left out: the one that runs Snakemake."
    )
    srun_args: str = execution(
        "",
        "Further options of the srun that starts node processes and of the one of backends srun and mpi, as for "
        "containers; none that moves tasks. With these backends also --gpus-per-task, --gpu-bind and --cpu-bind.",
    )
    port: Ports | None = execution(None, "Port of rank 0, or range as 20000-20100 that a firewall leaves open.")
    master_addr: Annotated[str, AfterValidator(checked_address)] | None = execution(
        None, "Address or name of the first node; left out: one that all nodes reach."
    )
    rollcall_timeout_s: float = execution(60.0, "From the first node's answer to the last one's.", gt=0)
    start_timeout_s: float = execution(600.0, "To the first node's answer; then for the imports on all nodes.", gt=0)
    init_timeout_s: float = execution(60.0, "For the process group and its first all-reduce.", gt=0)
    collective_timeout_s: float = execution(600.0, "For any later collective operation.", gt=0)
    heartbeat_timeout_s: float = execution(
        60.0, "A node silent, or a rank stopped, for so long without a step done is lost.", gt=0
    )
    progress_timeout_s: float = execution(
        1800.0, "Without a step, an evaluation or a save by any rank for so long, the run is ended; 0: never.", ge=0
    )
    end_timeout_s: float = execution(60.0, "From the first rank at the end of the run to the last one.", gt=0)
    stop_grace_s: float = execution(
        3.0, "Between the request to end and SIGKILL; the trainer's ranks are killed at once after a failure.", ge=0
    )
    save_grace_s: float = execution(
        60.0, "The same for ranks that are saving a checkpoint, where the end was asked for or the saving can succeed.",
        ge=0,
    )  # fmt: skip
    peak_tflops: float | None = execution(
        None, "Peak of one rank's device in train.precision, in TFLOP/s without sparsity, for the tables' MFU; left "
        "out: known by the device's name for common GPUs.", gt=0,
    )  # fmt: skip
    max_restarts: int = execution(2, "Restarts of all ranks in place after a failure.", ge=0)

    @property
    def ports(self) -> tuple[int, int] | None:
        """First and last port of `port`."""
        return None if self.port is None else parse_ports(self.port)

    @property
    def foreign(self) -> bool:
        """Whether the program of backend command is the training, and its ranks are not ours."""
        return self.backend == "command" and not uses_entry(self.command or "")


class Slurm(Section):
    """What is asked of Slurm. Keys left out fall to the profile's default-resources."""

    partition: str | None = execution(None, "Partition.")
    smoke_partition: str | None = execution(None, "Partition of the smoke test; left out: the run's own.")
    account: str | None = execution(None, "Account.")
    qos: str | None = execution(None, "Quality of service.")
    constraint: str | None = execution(None, "Features that nodes must have.")
    nodelist: str | None = execution(None, "Nodes that must be part of the job.")
    exclude: str | None = execution(None, "Nodes that must not.")
    gpu_type: str | None = execution(None, "GPU type as Slurm names it, such as a100-sxm4.", pattern=r"^[\w.-]+$")
    gpu_request: Literal["auto", "gres", "gpus-per-node", "none"] = execution(
        "auto", "How GPUs are asked for, whatever torch uses; auto: gres, or none where launch.device is cpu."
    )
    cpus_per_task: int = execution(
        4, "CPUs of each node's launcher and all its ranks; a rank's share of them becomes its OMP_NUM_THREADS.", ge=1
    )
    mem_mb: int | None = execution(None, "Memory per node in MB; 0: what Slurm gives by default (DefMemPerNode).", ge=0)
    runtime: str | None = execution(None, "Time limit: minutes, or text such as 12h.")
    signal: str | None = execution(
        "USR2@120", "Warning signal and seconds before the limit; null: none (the clock still works).",
        pattern=r"^([A-Z]+:)?(SIG)?[A-Z0-9]+@\d+$",
    )  # fmt: skip
    price_per_gpu_hour: float | None = execution(
        None, "What an hour of one GPU (of one process on a CPU run) costs; the tables multiply it.", ge=0
    )
    currency: str = execution("", "Of that price, such as EUR; stands beside each cost in the tables.")
    requeue: Literal["auto", "never"] = execution(
        "auto", "auto: a job that has saved near its limit puts itself back into the queue; never: Snakemake's retries."
    )
    runs_per_job: int = execution(
        1, "Runs alike in what they ask for that share a Slurm job, one after the other; runtime is that of each.", ge=1
    )
    extra: str = execution("", "Further sbatch options, appended to ours.")

    def lead_s(self, limit_s: float | None = None) -> float:
        """Seconds before the limit at which a job saves and stops: the signal's, at most a quarter of the limit."""
        lead_s = float(self.signal.partition("@")[2]) if self.signal else 120.0
        return lead_s if limit_s is None else min(lead_s, limit_s / 4)

    def warning(self, limit_s: float | None) -> str | None:
        """What `--signal` says. None for a short job, which the signal (up to 60 s early) would end at its start."""
        if self.signal is None or (limit_s is not None and limit_s < 2 * (self.lead_s() + SIGNAL_EARLY_S)):
            return None
        return self.signal


class Smoke(Section):
    """The rule `smoke`."""

    max_nodes: int = execution(2, "Most nodes that a smoke test takes.", ge=1)
    megabytes: float = execution(4.0, "Size of the bandwidth test's message.", gt=0)
    runtime: str = execution("10", "Time limit of the Slurm job.")
