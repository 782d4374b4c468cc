"""What the base install can do: import all of it. What an extra is for names the line that installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.every_module import ASK

ROOT = Path(__file__).parents[2]
FOR_WORKING_ON_IT = {"dev", "bench"}


def every_module(python: str, *blocked: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-m", "tests.every_module", *blocked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> None:
    assert found["failed"] == {}
    assert found["imported"] > 200
    for extra in ASK:
        assert f"pip install 'trainpkg[{extra}]'" in found["said"].get(extra, "nothing"), extra


@pytest.mark.timeout(320)
def test_without_any_extra_every_module_imports_and_each_extra_is_named() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(ASK) == set(extras) - FOR_WORKING_ON_IT, "tests/every_module.py asks for what each extra is for"
    check(every_module(sys.executable, *(module for module, _ in ASK.values())))


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_fresh_environment_with_the_base_install_imports_every_module(tmp_path: Path) -> None:
    """As `make demo` installs it; TORCH_INDEX in the environment chooses torch's build, as there."""
    venv = tmp_path / "venv"
    index = [f"TORCH_INDEX={os.environ['TORCH_INDEX']}"] if "TORCH_INDEX" in os.environ else []
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    subprocess.run(
        ["make", f"VENV={venv}", *index, str(venv / "demo.installed")], cwd=ROOT, env=own, check=True, timeout=2900
    )
    check(every_module(str(venv / "bin/python")))
