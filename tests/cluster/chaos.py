"""Kills of whatever there is to kill, at random instants, on a real Slurm: does every run end as if left alone?

`python -m tests.cluster.chaos [--kills 56] [--seed 0] [--write docs/chaos.md]` (as root): runs of 2 nodes x 2 ranks,
DDP and FSDP, each killed several times and submitted again until it is finished, then compared bit for bit with a run
of the same config that nobody disturbed. Prints one line per kill, and the sums.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.cluster import chaos_verdict
from tests.cluster.lab import Lab
from tests.cluster.machine import clean_environment
from tests.cluster.project import Project
from tests.cluster.submitted import SLOWED, Submitted
from tests.cluster.victims import TARGETS, Kill, drawn, strike
from trainpkg import __version__

EVERY_STEPS = 7  # between checkpoints: they fall inside intervals of records
CONFIG = f"""\
launch: {{device: cpu, nodes: 2, gpus_per_node: 2, max_restarts: 2, heartbeat_timeout_s: 15}}
slurm: {{cpus_per_task: 2}}
checkpoint: {{every_steps: {EVERY_STEPS}, keep_last: 2}}
logging: {{every_steps: 5, eval_every_steps: 12}}
evaluate: {{batch: 32}}
"""
RECIPES = {
    "ddp": """\
task: images
strategy: ddp
model: {name: conv, width: 8, dropout: 0.2}
data: {name: digits, shift: 1, workers: 1}
optim: {lr: 3e-3, warmup_steps: 5}
ema: {decay: 0.9}
train: {max_steps: 150, global_batch: 50, accumulation: 2}
""",
    "fsdp": """\
task: language
strategy: fsdp
model: {name: gpt, dim: 32, depth: 2, heads: 2, context: 32, dropout: 0.1}
data: {name: python_text, max_bytes: 200000, workers: 1}
optim: {lr: 2e-3, warmup_steps: 5}
ema: {decay: 0.9}
train: {max_steps: 150, global_batch: 10, accumulation: 2}
""",
}
# (recipe, whether its checkpoints are written while training goes on), in turn
RUNS = (("ddp", False), ("fsdp", True), ("ddp", True), ("fsdp", False))
ALONE = "alone-"
SLOW = {"PYTHONPATH": SLOWED, "CHAOS_STEP_S": "0.06", "CHAOS_PASS_S": "0.15", "CHAOS_SAVE_S": "0.2"}
MOMENTS = ("start", "step", "save", "evaluation")
SELDOM = ("slurmd for long",)  # takes as long as Slurm needs to give a node up


@dataclass
class Result:
    """One run and what was done to it."""

    run: str
    num_steps: int
    beside: bool  # checkpoints were written while training went on
    kills: list[tuple[Kill, str]] = field(default_factory=list)  # and what was hit
    wrong: list[str] = field(default_factory=list)
    twice: int = 0
    attempts: int = 0
    lives: int = 0

    def __str__(self) -> str:
        told = "; ".join(self.wrong) or "equal to the run that was left alone"
        how = " (asynchronous saves)" if self.beside else ""
        done = f"{len(self.kills)} kills, {self.attempts} attempts, {self.lives} lives, {self.twice} steps done again"
        return f"{self.run}{how}: {done}: {told}"


@dataclass
class Kills:
    """What is still to be done: `within` the training; `ends`: one at the end of each run, with all saved."""

    within: list[Kill]
    ends: list[Kill] = field(default_factory=list)
    per_run: int = 7  # within

    @classmethod
    def drawn(cls, number: int, seed: int, targets: Sequence[str] = tuple(TARGETS)) -> Kills:
        """`number` of them, every target at every moment before any comes again."""
        often = tuple(name for name in targets if name not in SELDOM)
        seldom = tuple(name for name in targets if name in SELDOM)
        num_ends = number // (cls.per_run + 1)
        within = drawn(number - num_ends - len(seldom), seed, often, MOMENTS)
        within += drawn(len(seldom), seed + 1, seldom, ("step",))
        return cls(within, drawn(num_ends, seed + 2, often, ("end",)))


def play(lab: Lab, folder: Path, kills: Kills, num_steps: int = 150) -> Iterator[Result]:
    """All kills, in as many runs as it takes, each judged when it has ended."""
    began = time.monotonic()
    project = Project(lab, folder, "run recipe", CONFIG, **RECIPES)
    recipes = [recipe for recipe in RECIPES if recipe == RUNS[0][0] or len(kills.within) > kills.per_run]
    rows = [(ALONE + recipe, recipe, False) for recipe in recipes]
    write_sheet(project, num_steps, rows)
    alone = {recipe: Submitted(project, ALONE + recipe, num_steps, {}) for recipe in recipes}
    for one in alone.values():
        one.finish()
    print(f"{', '.join(ALONE + recipe for recipe in recipes)}: finished ({time.monotonic() - began:.0f} s)", flush=True)
    for number, (recipe, beside) in enumerate(itertools.cycle(RUNS)):
        if not kills.within and not kills.ends:
            return
        began = time.monotonic()
        rows.append((f"{recipe}-{number}", recipe, beside))
        write_sheet(project, num_steps, rows)
        result = Result(rows[-1][0], num_steps, beside)
        run = Submitted(project, result.run, num_steps, SLOW)
        for _ in range(kills.per_run):
            if not kills.within or not disturb(run, kills.within, result):
                break
        if kills.ends:
            disturb(run, kills.ends, result)
        run.finish()
        judge(run, alone[recipe], result)
        print(f"{result} ({time.monotonic() - began:.0f} s)", flush=True)
        yield result


def write_sheet(project: Project, num_steps: int, rows: Sequence[tuple[str, str, bool]]) -> None:
    lines = [f"{run} {recipe} {num_steps} {str(beside).lower()}" for run, recipe, beside in rows]
    project.write_sheet("\n".join(["run recipe train.max_steps checkpoint.asynchronous", *lines]))


def disturb(run: Submitted, kills: list[Kill], result: Result) -> bool:
    """The next of the kills; False where the run finished before."""
    began = time.monotonic()
    hit = strike(run, kills[0])
    if hit is None:
        return False
    result.kills.append((kills.pop(0), hit))
    print(f"{run.run:<8} {result.kills[-1][0]!s:<32} {hit} ({time.monotonic() - began:.0f} s)", flush=True)
    return True


def judge(run: Submitted, alone: Submitted, result: Result) -> None:
    """Fill the result from the files of both runs, and from the tables that are made of them."""
    project = run.project
    result.wrong, result.twice = chaos_verdict.judge(run, alone, EVERY_STEPS * (1 + result.beside))
    command = [sys.executable, "-m", "trainpkg", "summarise"]
    subprocess.run(command, cwd=project.path, check=True, stdout=subprocess.DEVNULL)
    result.wrong += chaos_verdict.wrong_tables(project.path / "results/tables", run.run, alone.run)
    lives = run.lives()
    result.attempts, result.lives = lives[-1][0], len(lives)


def page(results: Sequence[Result], seed: int, seconds: float) -> str:
    """docs/chaos.md."""
    counts: dict[str, dict[str, int]] = {}
    for result in results:
        for kill, hit in result.kills:
            row = counts.setdefault(kill.target, {})
            row[hit.split()[0].rstrip(":")] = row.get(hit.split()[0].rstrip(":"), 0) + 1
            row["right"] = row.get("right", 0) + (not result.wrong)
    moments = [*MOMENTS, "end"]
    lines = ["| killed | " + " | ".join(f"at {moment}" for moment in moments) + " | together | right |"]
    lines.append("|---" * (len(moments) + 3) + "|")
    for target in filter(counts.get, TARGETS):
        row = counts[target]
        cells = [str(row.get(moment, 0) or "") for moment in moments]
        lines.append(" | ".join([f"| {target}", *cells, str(sum(row.get(m, 0) for m in moments)), f"{row['right']} |"]))
    num_kills = sum(len(result.kills) for result in results)
    right = sum(not result.wrong for result in results)
    versions = (
        f"trainpkg {__version__}, torch {torch.__version__}, Python {platform.python_version()}, {slurm_version()}"
    )
    return PAGE.format(
        date=datetime.date.today().isoformat(), versions=versions, num_kills=num_kills, num_runs=len(results),
        right=right, seed=seed, minutes=seconds / 60, table="\n".join(lines), every=EVERY_STEPS,
        lives=sum(result.lives for result in results), twice=sum(result.twice for result in results),
        steps=sum(result.num_steps for result in results), runs="\n".join(f"    {result}" for result in results),
    )  # fmt: skip


def slurm_version() -> str:
    environment = clean_environment(Path())
    return subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True, env=environment).stdout.strip()


PAGE = """\
# Chaos: killed at random instants, and the same weights in the end

Written by `make chaos` on {date} ({versions}; seed {seed}, {minutes:.0f} minutes).

On a real Slurm of three nodes, runs of 2 nodes x 2 ranks (DDP with a conv net, FSDP with a GPT; dropout, averaged
weights, accumulation, shares that the ranks do not divide) were killed **{num_kills}** times and submitted again until
they were finished. Each was then compared with a run of the same config that nobody disturbed: weights, optimizer,
averages, random generators and all else of the last checkpoint bit for bit, and the tables `steps` and `evaluations`
(but for time, rate, memory, attempt and generation). **{right} of {num_runs} runs** are equal. {lives} lives of
the ranks did {twice} of {steps} steps again, each from the newest checkpoint that its predecessors had published (one
every {every} steps).

{table}

`power of a node` is every process of it at once, and its cable; it boots again. `slurmd` dies and is back in time,
`slurmd for long` stays away until Slurm gives the node up while its processes live on. `save`: somewhere from the
first file of a checkpoint to the move of `latest`; `end`: with all saved, before the result was written. `scribe` is
the process that writes a rank's part beside training; where a run has none, the rank was killed. A kill is right when
its run ended equal in all these ways and every life began where it should.

{runs}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=56)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="the page that tells of it")
    args = parser.parse_args()
    began = time.monotonic()
    with Lab(num_nodes=3, gpus_per_node=0, conf={"SlurmdTimeout": 10}) as lab:
        folder = lab.shared_dir / "chaos"
        folder.mkdir()
        results = list(play(lab, folder, Kills.drawn(args.kills, args.seed)))
    text = page(results, args.seed, time.monotonic() - began)
    print(text)
    if args.write:
        args.write.write_text(text)
    return 1 if any(result.wrong for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
