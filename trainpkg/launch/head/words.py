"""What `launch` says of itself before anything starts, and in its last line. Pure: sentences out of facts."""

from __future__ import annotations

from collections.abc import Iterator

from trainpkg.config import Run
from trainpkg.launch.head.attempt import Folder
from trainpkg.launch.head.outcome import Outcome
from trainpkg.launch.slurm.control import Life
from trainpkg.launch.spec import Spec


def introduction(spec: Spec, run: Run, folder: Folder, life: Life | None, where: str) -> Iterator[str]:
    """What people read before anything starts."""
    if life and spec.where == "local" and where == "auto":
        yield f"warning: this is Slurm job {life.job}, but there is no srun here: all nodes are simulated on this one"
    if spec.where == "slurm" and spec.cpus_per_task < run.slurm.cpus_per_task:
        has = f"job {spec.slurm_job_id} has {spec.cpus_per_task} CPU(s) per node"
        yield f"warning: slurm.cpus_per_task is {run.slurm.cpus_per_task}, but {has}"
    if spec.attempt > 1:
        yield f"attempt {spec.attempt}; what earlier ones said is in {folder.launches}/*/launch.log"
    yield f"{spec.tag}: {spec.num_nodes} node(s) by {spec.where}, logs in {spec.launch_dir}"


def last_words(spec: Spec, outcome: Outcome) -> str:
    """The line that ends what people see."""
    steps = "" if outcome.step_last is None else f" at step {outcome.step_last}"
    text = outcome.sentence or f"{spec.stage} of {spec.run}: {outcome.verdict}{steps}"
    return text if outcome.status == 0 else f"{outcome.verdict}: {text} (status {outcome.status})"
