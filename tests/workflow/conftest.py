"""Snakemake started as a user starts it, in a copy of the workflow, beside Slurm commands that only write down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SNAKEMAKE = [sys.executable, "-m", "snakemake"]

FAKES = {
    # What the executor asks at start-up, and then of each job: it is submitted, and runs for ever.
    "sbatch": 'printf "%s\\n" "$@" > "$FAKE_SLURM/.$$" && mv "$FAKE_SLURM/.$$" "$FAKE_SLURM/job-$$" && echo 4242',
    "squeue": 'echo "4242|RUNNING"',
    "sinfo": "echo 'slurm 24.11'",
    "scontrol": "echo 'MinJobAge = 300 sec'",
    "sacct": "exit 0",
    "sacctmgr": "echo project",
    "sshare": "exit 1",
    "scancel": "exit 0",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the workflow's own files in a directory of its own."""
    target = tmp_path / "my checkout"  # as in "My Projects"
    target.mkdir()
    shutil.copy(ROOT / "Snakefile", target)
    for folder in ("workflow", "config", "profiles", "cluster", "examples"):
        shutil.copytree(ROOT / folder, target / folder)
    return target


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands in front of the PATH; `job-*` there hold what was submitted, an argument a line."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, script in FAKES.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


Snakemake = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def snakemake(checkout: Path) -> Snakemake:
    """`snakemake(*arguments, cwd=..., status=...)` -> the finished process, its output as text."""

    def call(
        *arguments: str, cwd: Path = checkout, status: int | None = 0, timeout: float = 100
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*SNAKEMAKE, *arguments],
            cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if status is not None:
            assert done.returncode == status, done.stdout + done.stderr
        return done

    return call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.workflow)
