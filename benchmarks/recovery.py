"""What an accident costs a run on a Slurm: steps that are trained again, and time until new ones come.

A job of two nodes x two ranks on a real Slurm in namespaces of this machine (root, --full), saving every 50 steps:
`launch` as the rule `train` starts it, beside Lightning with its own requeue (peers/lightning_slurm.py). Three
accidents: the warning that the time limit is near (ours asks for USR2, Lightning for USR1), a requeue by Slurm as after
a preemption, and SIGKILL of a rank. Lost: the last step before it less the one that the run went on from.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ours, workload
from benchmarks.commands import ROOT, Unsuccessful
from benchmarks.harness import Figure, Part, Row, Scale, interleaved

STEPS_BEFORE, EVERY = 130, 50
TRAINS_CAP_S, AGAIN_CAP_S = 600.0, 120.0  # this Slurm lets a requeued job wait for 5 s, others for two minutes
Progress = list[tuple[str, int]]  # which life of the run, step; in the order of their coming


class Way:
    """A job in the lab. `warning`: the signal that it asks for ahead of the time limit."""

    warning = "USR2"

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.folder: Path = lab.shared_dir / f"bench-{time.monotonic_ns()}"
        self.folder.mkdir()
        options = ["--nodes=2", "--requeue", "--open-mode=append", f"--output={self.folder}/out", "--time=60"]
        prepared = f"cd {ROOT}; export OMP_NUM_THREADS=1 PYTHONPATH={ROOT}\n"
        self.job = lab.sbatch(prepared + shlex.join(self.command()), *options, *self.shape(), cwd=self.folder)

    def command(self) -> list[str]:
        config = ours.project(
            self.folder / "project",
            workload.recipe("conv", 4, steps=10**6)
            | {
                "logging": {"every_steps": 1, "eval_every_steps": 10**6},
                "checkpoint": {"every_steps": EVERY},
                "slurm": {"cpus_per_task": 2},
            },
            {"where": "slurm", "nodes": 2, "gpus_per_node": 2, "max_restarts": 1},
        )
        self.config = config
        return [*ours.command(config), "--requeue"]

    def shape(self) -> list[str]:
        return ["--ntasks-per-node=1", "--cpus-per-task=2"]

    def progress(self) -> Progress:
        return [(f"{record['attempt']}.{record['generation']}", record["step"]) for record in ours.records(self.config)]

    def said(self) -> str:
        out = self.folder / "out"
        return ours.said(self.config) + (out.read_text() if out.exists() else "")


class Lightning(Way):
    warning = "USR1"

    def command(self) -> list[str]:
        script = str(ROOT / "benchmarks/peers/lightning_slurm.py")
        return ["srun", sys.executable, script, str(self.folder)]

    def shape(self) -> list[str]:
        return ["--ntasks-per-node=2", "--cpus-per-task=1", "--signal=SIGUSR1@90"]

    def progress(self) -> Progress:
        path = self.folder / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(life, int(step)) for life, step in (line.split() for line in lines if line.count(" ") == 1)]

    def said(self) -> str:
        out = self.folder / "out"
        return out.read_text() if out.exists() else ""


WAYS = {"launch": Way, "Lightning": Lightning}


def warned(way: Way) -> None:
    way.lab.run(["scancel", f"--signal={way.warning}", way.job])


def requeued(way: Way) -> None:
    way.lab.run(["scontrol", "requeue", way.job])


def killed(way: Way) -> None:
    found = re.findall(r"rank 3 is process (\d+)", way.said())
    if not found:
        raise Unsuccessful("rank 3 did not say its process")
    way.lab.kill("n2", int(found[-1]))


ACCIDENTS: dict[str, Callable[[Way], None]] = {
    "warned of the time limit": warned,
    "requeued by Slurm": requeued,
    "SIGKILL of a rank": killed,
}


def meet(lab: Any, kind: type[Way], accident: Callable[[Way], None], before: int) -> Mapping[str, float]:
    """`before`: the step after which the accident strikes."""
    way = kind(lab)
    try:
        await_(lambda: any(step >= before for _, step in way.progress()), way, TRAINS_CAP_S, "trains")
        accident(way)
        began = time.monotonic()
        life, _ = way.progress()[-1]
        await_(lambda: way.progress()[-1][0] != life, way, AGAIN_CAP_S, "goes on")
        again_s = time.monotonic() - began
        steps = way.progress()
        reached = max(step for one, step in steps if one == life)
        first = next(step for one, step in steps if one != life)
        return {"again_s": again_s, "lost_steps": float(max(reached - first + 1, 0))}
    finally:
        lab.run(["scancel", way.job], check=False)
        lab.mend()


def await_(condition: Callable[[], bool], way: Way, cap_s: float, what: str) -> None:
    end = time.monotonic() + cap_s
    while not condition():
        if time.monotonic() > end:
            state = way.lab.job(way.job)["JobState"]
            raise Unsuccessful(f"waited {cap_s:.0f} s in vain until it {what}; the job is {state}")
        time.sleep(0.05)


def measure(scale: Scale) -> Iterator[Row]:
    from tests.cluster.lab import Lab

    with Lab(num_nodes=2, gpus_per_node=2) as lab:
        chosen = {"requeued by Slurm": requeued} if scale.tiny else ACCIDENTS
        for name, accident in chosen.items():
            before = 10 if scale.tiny else STEPS_BEFORE
            ways = {way: partial(meet, lab, kind, accident, before) for way, kind in WAYS.items()}
            yield from interleaved(name, ways, scale.repetitions, warm_up=False)


def needs(scale: Scale) -> str | None:
    if not (scale.full or scale.tiny):
        return "it needs a Slurm: say --full"
    from tests.cluster.machine import missing

    return missing() or None


PART = Part(
    "recovery",
    "Recovery on a Slurm",
    "less work lost, and less time to the first new step",
    "launch",
    (Figure("again_s", "first new step", "s"), Figure("lost_steps", "steps trained again", "", None)),
    measure,
    needs=needs,
)
