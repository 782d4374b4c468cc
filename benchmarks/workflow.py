"""Snakemake's side: planning and scheduling of many runs, and what stands between `snakemake` and the first step.

- dry run: `snakemake -n` over a sheet of so many runs, and what each job reads of that sheet; `own share`: of the time
  of the whole dry run, by cProfile, what is spent in functions of this workflow and this package, and all they call.
- scheduling: so many training jobs whose command is a stand-in that writes its output and ends, beside a loop of shell
  that calls the same command as often.
- first step (root, --full): on a real Slurm in namespaces of this machine, from the command to the first record of a
  training of two nodes: `snakemake --executor slurm` beside a bare sbatch script with the command of the rule `train`.

`python -m benchmarks.workflow --hot RUNS` prints where the time of a dry run goes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, Unsuccessful, folder, path, python, used_by
from benchmarks.harness import Figure, Part, Plot, Row, Scale, interleaved

RECIPE = """\
task: images
model: {{name: vit, dim: 16, depth: 1, heads: 2, patch: 2}}
data: {{name: digits}}
train: {{max_steps: 100, global_batch: 8}}
launch: {{device: cpu}}
sweep:
  grid: {{seed: [0, 1, 2, 3, 4]}}
  samples: {samples}
  random: {{optim.lr: {{draw: log, low: 1e-4, high: 1e-1}}, optim.weight_decay: {{low: 0, high: 0.1}}}}
"""
READ = "from pathlib import Path; from trainpkg import sheet; s = sheet.load(Path('config/config.yaml'), lazily={})"
DRY = ["-m", "snakemake", "-n", "--quiet", "all"]
COMMANDS = {
    "snakemake -n": DRY,
    "the sheet, all runs": ["-c", READ.format(False)],
    "the sheet, as a job reads it": ["-c", READ.format(True) + "; s.run(next(iter(s.runs)))"],
}
PROFILED = f"""
import cProfile, json, pstats, sys
from snakemake.cli import main
profile = cProfile.Profile()
sys.argv = ["snakemake", *{DRY[2:]!r}]
profile.enable()
try:
    main()
except SystemExit:
    pass
profile.disable()
stats = pstats.Stats(profile, stream=sys.stderr)
"""
HOT = PROFILED + 'stats.sort_stats("cumtime").print_stats(60)\n'
SHARE = (
    PROFILED
    + """
def ours(place):  # rules are compiled under their own path; what a module does as a whole calls Snakemake again
    its = place[0].endswith((".smk", "/Snakefile")) or "/trainpkg/" in place[0]
    return its and place[2] != "<module>"
own = sum(
    part[3] for place, (_, _, _, _, callers) in stats.stats.items() if ours(place)
    for caller, part in callers.items() if not ours(caller)
)
json.dump({"own_share": own / stats.total_tt}, open("share.json", "w"))
"""
)


def checkout(place: Path, num_runs: int) -> None:
    """The workflow with a sheet of so many runs, of which nothing but the smoke test's result is there."""
    shutil.copy(ROOT / "Snakefile", place)
    for name in ("workflow", "profiles"):
        shutil.copytree(ROOT / name, place / name)
    (place / "config/recipes").mkdir(parents=True)
    (place / "config/config.yaml").write_text("results_dir: results\n")
    (place / "config/recipes/tiny.yaml").write_text(RECIPE.format(samples=num_runs // 5))
    (place / "config/runs.tsv").write_text("run\trecipe\ntiny\ttiny\n")
    (place / "results/smoke").mkdir(parents=True)
    (place / "results/smoke/1xall-cpu-single-spawn.json").write_text("{}")


def dry(command: list[str], num_runs: int) -> Mapping[str, float]:
    with folder() as place:
        checkout(place, num_runs)
        found = used_by(python(*command), place=place)
        return found | {"ms_per_run": 1000 * found["cpu_s"] / num_runs}


def share(num_runs: int) -> Mapping[str, float]:
    with folder() as place:
        checkout(place, num_runs)
        used_by(python("-c", SHARE), place=place)
        found: Mapping[str, float] = json.loads((place / "share.json").read_text())
        return found


def stand_in() -> dict[str, str]:
    """The environment in which a training job writes its output and ends."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks/stand_in"), path()])}


def scheduled(num_runs: int) -> Mapping[str, float]:
    """All trainings of the sheet, as fast as Snakemake starts them."""
    with folder() as place:
        checkout(place, num_runs)
        options = ["--until", "train", "--quiet", "all", "--cores", "8", "--resources", "machine=8"]
        found = used_by(python("-m", "snakemake", *options), place=place, **stand_in())
        done = len(list(place.glob("results/runs/*/train.json")))
        if done != num_runs:
            raise Unsuccessful(f"{done} of {num_runs} runs have their output")
        return found | {"ms_per_run": 1000 * found["wall_s"] / num_runs}


def looped(num_runs: int) -> Mapping[str, float]:
    with folder() as place:
        command = f"{shlex.quote(sys.executable)} -m trainpkg launch train --out results/$k.json"
        (place / "results").mkdir()
        found = used_by(["bash", "-c", f"for k in $(seq {num_runs}); do {command}; done"], place=place, **stand_in())
        return found | {"ms_per_run": 1000 * found["wall_s"] / num_runs}


SHAPE = "run recipe launch.nodes launch.gpus_per_node\none digits 2 2\n"


def to_first_step(scale: Scale) -> Iterator[Row]:
    """On a lab's Slurm, in turn."""
    from tests.cluster.lab import Lab

    with Lab(num_nodes=2, gpus_per_node=2) as lab:
        ways = {"snakemake": partial(through_snakemake, lab), "sbatch": partial(through_sbatch, lab)}
        yield from interleaved("to the first record", ways, scale.repetitions, warm_up=False)


def project_in(lab: Any) -> Any:
    from tests.cluster.project import CONFIG, Project

    place = lab.shared_dir / f"bench-{time.monotonic_ns()}"
    place.mkdir()
    project = Project(lab, place, SHAPE, CONFIG.replace("every_steps: 5", "every_steps: 1"))
    project.skip_smoke()
    return project


def recorded(lab: Any, project: Any, began: float, job_id: str) -> Mapping[str, float]:
    """Seconds to the first record; without those that the job waited for Slurm."""
    metrics = project.run_dir("one") / "metrics.jsonl"
    lab.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, "a record", 300)
    found = {"first_s": time.monotonic() - began}
    job = job_id or lab.run(["squeue", "--noheader", "--format=%i"]).stdout.split()[0]
    facts = lab.job(job)
    stamp = "%Y-%m-%dT%H:%M:%S"
    submitted, started = (time.mktime(time.strptime(facts[name], stamp)) for name in ("SubmitTime", "StartTime"))
    return found | {"queued_s": started - submitted, "beyond_s": found["first_s"] - (started - submitted)}


def through_snakemake(lab: Any) -> Mapping[str, float]:
    project = project_in(lab)
    began = time.monotonic()
    command = project.start("results/runs/one/train.json")
    try:
        return recorded(lab, project, began, "")
    finally:
        project.ended(command, 120)
        command.kill()
        lab.wait_jobs_gone(60, cancel=True)


def through_sbatch(lab: Any) -> Mapping[str, float]:
    project = project_in(lab)
    out = project.run_dir("one") / "train.json"
    command = [sys.executable, "-m", "trainpkg", "launch", "train", "--run", "one", "--out", str(out)]
    shape = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--mem=1000", "--time=20", "--partition=main"]
    began = time.monotonic()
    job = lab.sbatch(shlex.join(command), *shape, cwd=project.path)
    try:
        return recorded(lab, project, began, job)
    finally:
        lab.wait_job(job, timeout=120)


def measure(scale: Scale) -> Iterator[Row]:
    for size in (100,) if scale.tiny else (100, 1000, 2700, 27_270) if scale.full else (100, 1000):
        ways = {name: partial(dry, command, size) for name, command in COMMANDS.items()}
        repetitions = scale.repetitions if size < 10_000 else 1  # it takes 374 s of CPU
        yield from interleaved(f"{size:,} runs, dry run", ways, repetitions, size=size, warm_up=False)
        if size in ((100, 1000) if scale.full else (100,)):
            ways = {"snakemake -n": partial(share, size)}
            yield from interleaved(f"{size:,} runs, profiled", ways, 1, warm_up=False)
    for size in (20,) if scale.tiny else (100, 1000) if scale.full else (100,):
        ways = {"snakemake": partial(scheduled, size), "loop of shell": partial(looped, size)}
        repetitions = scale.repetitions if size < 1000 else 1
        yield from interleaved(f"{size:,} runs, scheduling", ways, repetitions, warm_up=False)
    if scale.full:
        from tests.cluster.machine import missing

        if lack := missing():
            print(f"to the first record: not measured: {lack}", flush=True)
        else:
            yield from to_first_step(scale)


PART = Part(
    "workflow",
    "Snakemake's side",
    "dominated by Snakemake itself, our share below 10 %",
    "snakemake",
    (
        Figure("wall_s", "wall", "s", None),
        Figure("cpu_s", "CPU", "s", None),
        Figure("ms_per_run", "per run", "ms", None),
        Figure("memory_mb", "memory", "MB", None),
        Figure("own_share", "own share", "", None),
        Figure("first_s", "first record", "s"),
        Figure("beyond_s", "first record beyond Slurm's queue", "s"),
    ),
    measure,
    (Plot("growth", "cpu_s", sizes="runs"),),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hot", type=int, metavar="RUNS", required=True, help="a multiple of 5")
    with folder() as place:
        checkout(place, parser.parse_args().hot)
        used_by(python("-c", HOT), place=place)
        print((place / "said").read_text())


if __name__ == "__main__":
    main()
