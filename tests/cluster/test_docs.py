"""docs/ten-minutes.md typed on the submit host, block by block, in a fresh copy of the workflow."""

from __future__ import annotations

import csv
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT
from tests.cluster.project import CONFIG, QUICK, SNAKEMAKE
from tests.pages import blocks

PAGE = CHECKOUT / "docs/ten-minutes.md"


def quick(profile: Path) -> None:
    """The profile with shorter pauses between looks at the queue."""
    text = profile.read_text()
    for option, seconds in zip(QUICK[::2], QUICK[1::2], strict=True):
        lines = [
            f"{option[2:]}: {seconds}" if line.startswith(f"{option[2:]}:") else line for line in text.splitlines()
        ]
        assert "\n".join(lines) + "\n" != text, option
        text = "\n".join(lines) + "\n"
    profile.write_text(text)


def quick_snakemake(folder: Path) -> Path:
    """A directory for the PATH whose `snakemake` looks often."""
    command = folder / "bin/snakemake"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(SNAKEMAKE)} "$@"\n')
    command.chmod(0o755)
    return command.parent


@pytest.mark.timeout(600)
def test_ten_minutes_on_a_cluster(lab: Lab, shared_dir: Path) -> None:
    clone = shared_dir / "trainpkg"
    clone.mkdir()
    shutil.copy(CHECKOUT / "Snakefile", clone)
    for folder in ("workflow", "profiles", "cluster", "config"):
        shutil.copytree(CHECKOUT / folder, clone / folder)
    quick(clone / "cluster/profile.yaml")
    path = f"export PATH={quick_snakemake(shared_dir)}:{Path(sys.executable).parent}:$PATH\n"
    typed = 0
    for block in blocks(PAGE):
        if "site" in block.marks:  # where the page says `yours`
            (clone / "config/config.yaml").write_text(CONFIG)
        if "slurm" not in block.marks:
            continue
        done = lab.run(["bash", "-eu", "-c", path + block.text], cwd=clone, check=False, timeout=300)
        logs = "".join(log.read_text()[-1500:] for log in clone.glob("logs/**/*.log"))
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}{logs}"
        typed += 1
    assert typed >= 6
    with (clone / "results/tables/runs.csv").open() as lines:
        rows = {row["run"]: (row["status"], row["world_size"]) for row in csv.DictReader(lines)}
    assert rows == {"small": ("finished", "1"), "wide": ("finished", "4")}
    assert (clone / "report.html").stat().st_size > 100_000
    assert len(list((clone / "results/smoke").glob("*.txt"))) == 2
