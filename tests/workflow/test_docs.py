"""The blocks of the pages that are marked `run`, typed in a fresh copy of the workflow, in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, Block, marked


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "some", [pytest.param(some, id=str(page.relative_to(ROOT))) for page, some in marked("run").items()]
)
def test_what_a_page_shows_runs(checkout: Path, some: list[Block]) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "PYTHONPATH": str(ROOT)}
    for block in some:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=checkout, env=env, capture_output=True, text=True, timeout=250, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        assert done.stdout, f"{block}: it shows nothing"
