"""A user's project on the lab's shared file system: workflow, sheet, small recipes; Snakemake on the submit host."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT
from tests.cluster.namespaces import Entered

CONFIG = """\
launch: {device: cpu, rollcall_timeout_s: 30, init_timeout_s: 60, max_restarts: 0}
slurm: {gpu_request: gres, partition: main, smoke_partition: smoke, cpus_per_task: 2, mem_mb: 1000, runtime: "20"}
logging: {every_steps: 5, eval_every_steps: 1000}
"""
RECIPES = {
    "digits": """\
task: images
model: {name: conv, width: 8}
data: {name: digits}
optim: {lr: 3e-3, warmup_steps: 5}
train: {max_steps: 40, global_batch: 24}
""",
    "gpt": """\
task: language
strategy: fsdp
model: {name: gpt, dim: 32, depth: 2, heads: 2, context: 32}
data: {name: python_text, max_bytes: 200000}
optim: {lr: 2e-3, warmup_steps: 5}
train: {max_steps: 20, global_batch: 8}
""",
}
# the profile's own numbers suit jobs of hours, and so does what no option says: quick.py
QUICK = ["--max-status-checks-per-second", "9", "--latency-wait", "20"]
SNAKEMAKE = [sys.executable, "-P", str(CHECKOUT / "tests/cluster/quick.py")]


class Project:
    """`path` is the directory that Snakemake runs in."""

    def __init__(self, lab: Lab, path: Path, sheet: str, config: str = "", **recipes: str) -> None:
        self.lab, self.path = lab, path
        shutil.copy(CHECKOUT / "Snakefile", path)
        for folder in ("workflow", "profiles", "cluster"):
            shutil.copytree(CHECKOUT / folder, path / folder)
        (path / "config/recipes").mkdir(parents=True)
        (path / "config/config.yaml").write_text(config or CONFIG)
        for name, text in (RECIPES | recipes).items():
            (path / f"config/recipes/{name}.yaml").write_text(text)
        self.write_sheet(sheet)

    def write_sheet(self, sheet: str) -> None:
        """Words separated by blanks; `-` is an empty cell."""
        rows = [["" if word == "-" else word for word in line.split()] for line in sheet.strip().splitlines()]
        (self.path / "config/runs.tsv").write_text("\n".join("\t".join(row) for row in rows) + "\n")

    def command(self, *arguments: str) -> list[str]:
        """As a user types it, but for the quicker looks at the queue."""
        slurm = ["--executor", "slurm", "--profile", "cluster"]
        return [*SNAKEMAKE, *slurm, *QUICK, *arguments]

    def snakemake(
        self, *arguments: str, status: int | None = 0, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        done = self.lab.run(self.command(*arguments), cwd=self.path, check=False, timeout=timeout)
        if status is not None:
            assert done.returncode == status, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done

    def start(self, *arguments: str) -> Entered:
        """Snakemake in the background, its words in snakemake.log."""
        with (self.path / "snakemake.log").open("w") as log:
            return self.lab.popen(self.command(*arguments), cwd=self.path, stdout=log, stderr=log)

    def ended(self, command: Entered, timeout_s: float) -> int | None:
        """The status of a command that was started; None where it goes on after so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return command.wait(timeout_s)
        return None

    def skip_smoke(self) -> None:
        """Put results of all smoke tests in their places: another test has shown that they are got."""
        from trainpkg import sheet

        tree = sheet.read_yaml(self.path / "config/config.yaml", "config")
        tree |= {"sheet": f"{self.path}/config/runs.tsv", "recipes": f"{self.path}/config/recipes"}
        (self.path / "results/smoke").mkdir(parents=True, exist_ok=True)
        for topology in sheet.load(tree).topologies():
            (self.path / f"results/smoke/{topology}.json").write_text("{}\n")

    def run_dir(self, run: str) -> Path:
        return self.path / "results/runs" / run

    def json(self, name: str) -> dict[str, Any]:
        """A file below results/."""
        found: dict[str, Any] = json.loads((self.path / "results" / name).read_text())
        return found

    def table(self) -> dict[str, dict[str, str]]:
        """results/tables/runs.csv by run."""
        with (self.path / "results/tables/runs.csv").open() as lines:
            return {row["run"]: row for row in csv.DictReader(lines)}

    def logs(self) -> str:
        """What every rule, node and rank wrote last, for the report of a failure."""
        paths = [*self.path.glob("logs/**/*.log"), *self.path.glob("results/**/launch/*/*/*.log")]
        return "\n".join(f"--- {path.relative_to(self.path)}\n{path.read_text()[-1500:]}" for path in sorted(paths))
