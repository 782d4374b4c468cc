"""CoreNet started once per node: a stand-in program of its name says with which arguments, node by node."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.distributed.launching import Launch
from trainpkg.__main__ import main

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
STAND_IN = """\
#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done > "$TEST_ARGUMENTS/$NODE_RANK"
"""


def recipe_of(folder: Path, *words: str) -> dict[str, Any]:
    """What `convert corenet --run-corenet` writes."""
    (folder / "their {own}.yaml").write_text("common: {run_label: train}\n")
    out = folder / "recipe.yaml"
    assert main(["convert", "corenet", str(folder / "their {own}.yaml"), "--run-corenet", f"--out={out}", *words]) == 0
    found: dict[str, Any] = yaml.safe_load(out.read_text())
    return found


def test_the_exact_arguments_on_each_node(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "corenet-train"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    keys = recipe_of(tmp_path, "--nodes=3", "--gpus-per-node=4")["launch"]
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "TEST_ARGUMENTS": str(tmp_path)}
    done = Launch(tmp_path / "run", keys, environment=environment).run()
    assert done.status == 0, done.output
    assert "3 of 3 programs started" in done.output
    plan = done.file("0/plan.json")
    where = f"tcp://{plan['master_addr']}:{plan['master_port']}"
    assert re.fullmatch(r"tcp://[0-9.]+:[0-9]+", where)
    for node, rank in enumerate((0, 4, 8)):
        assert (tmp_path / str(node)).read_text().splitlines() == [
            "--common.config-file", str(tmp_path / "their {own}.yaml"), "--common.results-loc", str(tmp_path / "run"),
            "--ddp.rank", str(rank), "--ddp.world-size", "12", "--ddp.dist-url", where, "--ddp.backend", "nccl",
        ]  # fmt: skip
    assert json.loads(done.out.read_text())["gpus_per_node"] == [4, 4, 4]
