"""What `launch` tells every node and rank about this attempt: spec.json, read with the standard library alone."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch.ports import port_seed
from trainpkg.template import uses_entry

PRELOAD = ("torch", "torch._dynamo", "trainpkg.runtime.rank")  # and the stage's own module
ENTRY = "trainpkg.runtime.rank:main"
TOKEN = "token"  # file in an attempt's directory by which typed nodes see that they share it
PROGRAMS = {"torchrun": "torchrun", "torchrun-static": "torchrun", "command": "program"}  # backend -> what it starts


@dataclass(frozen=True)
class Timeouts:
    """Seconds; see the keys of the config's section `launch`."""

    rollcall_s: float = 60.0
    start_s: float = 600.0
    init_s: float = 60.0
    heartbeat_s: float = 60.0
    stop_grace_s: float = 3.0
    save_grace_s: float = 60.0
    save_s: float = 3600.0
    progress_s: float = 1800.0
    end_s: float = 60.0


@dataclass(frozen=True)
class Spec:
    """One attempt of one stage of one run, as its nodes see it. Paths are absolute."""

    stage: str
    run: str
    run_dir: str
    out: str
    config_path: str
    attempt: int
    num_nodes: int
    hosts: list[str]  # expected, in node order
    where: str  # slurm | local | typed
    launch_dir: str
    gpus_per_node: list[int] | None = None  # None: what each node shows
    device: str = "auto"
    devices: list[int] | None = None
    backend: str = "spawn"
    dist_backend: str = "auto"
    start: str = "fork"
    script: list[str] = field(default_factory=list)  # a user's own program: what follows `python -u` in each rank
    outputs: list[str] = field(default_factory=list)  # files that it must leave behind
    metrics: str | None = None  # the file of JSON lines that it writes
    command: str | None = None  # template of what backend command starts once per node
    oversubscribe: bool = False
    preload: list[str] = field(default_factory=lambda: list(PRELOAD))
    entry: str = ENTRY
    timeouts: Timeouts = Timeouts()
    max_restarts: int = 2
    began_unix_s: float = 0.0
    deadline: float | None = None  # unix seconds
    deadline_lead_s: float = 120.0
    env: dict[str, str] = field(default_factory=dict)
    env_prepend: dict[str, str] = field(default_factory=dict)
    preset: str = "none"
    prologue: list[str] = field(default_factory=list)
    wrapper: str | None = None
    python: str | None = None
    srun_args: str = ""
    cpus_per_task: int = 1
    code_hash: str = ""
    nonce: str = ""  # tells this attempt from one of the same name in another tree
    slurm_job_id: str | None = None
    dist_addr: str = ""  # of node 0, where nodes are typed
    typed_local: bool = False  # typed nodes that are all on this machine
    ports: list[int] | None = None  # first and last that a site leaves open; None: chosen freely
    master_addr: str | None = None  # address or name of the first node; None: one that all nodes reach
    het: list[list[Any]] = field(default_factory=list)  # parts of a heterogeneous job: group, job id, nodes
    mpi: str = ""  # how backend mpi starts: pmix | pmi2 | mpirun
    mpirun: str = ""  # whose mpirun it is
    mpi_said: str = ""  # what the programs of MPI said when they were asked, for messages
    step_gpus: int = 0  # per node, to be asked of srun: a step of an exclusive job gets none by itself
    overlap: bool = True  # whether the step of node processes shares what other steps of the job hold

    @property
    def tag(self) -> str:
        """What tells this attempt from every other one."""
        job = f"job {self.slurm_job_id}, " if self.slurm_job_id else ""
        return f"{job}{self.stage} of {self.run}, attempt {self.attempt}"

    @property
    def handshake(self) -> str:
        """What is bound into the handshake: a typed node calls before it knows of any attempt."""
        return "typed nodes" if self.where == "typed" else self.tag

    @property
    def simulated(self) -> bool:
        """Whether all nodes are on this machine, where loopback will do."""
        return self.where == "local" or self.typed_local

    @property
    def needs_shared_directory(self) -> bool:
        """Whether ranks of several nodes write into one run directory: ours do, a user's own program may not."""
        return not self.silent and self.entry == ENTRY

    @property
    def parts(self) -> list[tuple[int, str, int]]:
        return [(int(group), str(job), int(number)) for group, job, number in self.het]

    @property
    def port_range(self) -> tuple[int, int] | None:
        return None if self.ports is None else (self.ports[0], self.ports[1])

    def port_seed(self, generation: int) -> str:
        """What the choice of the ranks' port follows from: another one per job, run, attempt and restart."""
        return f"{port_seed(self.slurm_job_id, self.attempt, generation)}/{self.run}"

    @property
    def ranks_are_tasks(self) -> bool:
        """Whether ranks are tasks of a step that `launch` starts, not processes that the nodes start."""
        return self.backend == "srun" or bool(self.mpi)

    def generation_dir(self, generation: int) -> Path:
        """Where the logs and the verdict of one generation of ranks are."""
        return Path(self.launch_dir) / str(generation)

    @property
    def by_program(self) -> bool:
        """Whether each node starts one program of somebody else's, which starts the ranks."""
        return self.backend in PROGRAMS

    @property
    def foreign(self) -> bool:
        """Whether that program is all that we see of a node: its ranks are not ours."""
        return self.backend == "command" and not uses_entry(self.command or "")

    @property
    def silent(self) -> bool:
        """Whether what runs tells nothing of itself: an end with status 0 is a good one then, whenever it comes."""
        return bool(self.script) or self.foreign

    @property
    def passes_port(self) -> bool:
        """Whether rank 0 gets the very socket that node 0 holds; else node 0 lets go just before somebody binds it."""
        return not self.by_program and not self.script

    def report_address(self, index: int) -> str:
        """Where a node's launcher hears its ranks: a name in the kernel's abstract namespace of unix sockets.

        Whoever has this spec can compute it, also a task that `srun` or `mpirun` started with an environment of its
        own; no folder is left behind, and a second launcher on the same host finds the name taken. Simulated nodes
        share a machine, so their number is part of it; a real node has one launcher, whatever a task knows of it.
        """
        node = "" if self.where == "slurm" else f"node {index}"
        text = "|".join([self.tag, self.launch_dir, self.nonce, node])
        return f"@trainpkg/{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def read(path: Path) -> Spec:
    """The spec in a file. Keys of a newer writer are ignored. Raises UserError when it cannot be read."""
    try:
        tree: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"--spec {path}: {getattr(error, 'strerror', None) or error}. The run directory must lie on a file system "
            "that all nodes share."
        ) from error
    return from_dict(tree)


def from_dict(tree: dict[str, Any]) -> Spec:
    """The spec of a JSON object. Keys of a newer writer are ignored."""
    known = {f.name for f in dataclasses.fields(Spec)}
    times = {f.name for f in dataclasses.fields(Timeouts)}
    tree["timeouts"] = Timeouts(**{k: v for k, v in tree.get("timeouts", {}).items() if k in times})
    return Spec(**{k: v for k, v in tree.items() if k in known})
