"""What a large sheet costs before anything runs: `snakemake -n`, reading the sheet, and what each job reads of it.

One recipe with a sweep makes the runs; nothing but their smoke test's result is there. Prints a table, judges nothing.

    python -m benchmarks.planning --runs 100 2700 27270
    python -m benchmarks.planning --runs 2700 --hot      # and where Snakemake's time goes
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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
COMMANDS = {
    "sheet, all runs": ["-c", READ.format(False)],
    "sheet, as a job reads it": ["-c", READ.format(True) + "; s.run(next(iter(s.runs)))"],
    "snakemake -n": ["-m", "snakemake", "-n", "--quiet", "all"],
}
HOT = """
import cProfile, pstats, sys
from snakemake.cli import main
sys.argv = ["snakemake", "-n", "--quiet", "all"]
profile = cProfile.Profile()
profile.enable()
try:
    main()
except SystemExit:
    pass
profile.disable()
pstats.Stats(profile, stream=sys.stderr).sort_stats("cumtime").print_stats(60)
"""


def checkout(folder: Path, num_runs: int) -> None:
    """The workflow with a sheet of so many runs."""
    shutil.copy(ROOT / "Snakefile", folder)
    for name in ("workflow", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "config/recipes").mkdir(parents=True)
    (folder / "config/config.yaml").write_text("results_dir: results\n")
    (folder / "config/recipes/tiny.yaml").write_text(RECIPE.format(samples=num_runs // 5))
    (folder / "config/runs.tsv").write_text("run\trecipe\ntiny\ttiny\n")
    (folder / "results/smoke").mkdir(parents=True)
    (folder / "results/smoke/1xall-cpu-single-spawn.json").write_text("{}")


def measure(command: list[str], folder: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds, largest resident memory in MB of one command."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, *command], cwd=folder, env=env, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 2700, 27270], help="sizes, multiples of 5")
    parser.add_argument("--hot", action="store_true", help="print where the time of `snakemake -n` goes")
    args = parser.parse_args()
    print("| runs | command | wall s | CPU s | CPU ms per run | memory MB |\n|---|---|---|---|---|---|")
    for num_runs in args.runs:
        with tempfile.TemporaryDirectory(prefix="trainpkg-planning-") as name:
            checkout(Path(name), num_runs)
            for what, command in COMMANDS.items():
                wall_s, cpu_s, memory_mb = measure(command, Path(name))
                per_run_ms = 1000 * cpu_s / num_runs
                print(
                    f"| {num_runs} | {what} | {wall_s:.1f} | {cpu_s:.1f} | {per_run_ms:.2f} | {memory_mb:.0f} |",
                    flush=True,
                )
            if args.hot:
                measure(["-c", HOT], Path(name))


if __name__ == "__main__":
    main()
