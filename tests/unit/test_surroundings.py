"""Modules, conda, Apptainer and pyxis as config/README.md shows them: what srun starts on each node, to the letter."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import yaml

from tests.pages import ROOT, blocks
from trainpkg.config import Run
from trainpkg.launch.head import attempt
from trainpkg.launch.head.attempt import Folder
from trainpkg.launch.head.steps import command, places

GOLDEN = ROOT / "tests/golden/surroundings.txt"
REPAIR = "TRAINPKG_GOLDEN=write python -m pytest tests/unit/test_surroundings.py"


def started(launch: dict[str, object]) -> str:
    """The words that start a node of a job of two, and the shell's program without its functions."""
    entry = {"module": "train"}
    run = Run.model_validate({"run": "a", "recipe": "r", "entry": entry, "launch": {"nodes": 2, **launch}})
    spec = attempt.make_spec(run, Folder.of("train", Path("/r/a/train.json")), ["n1", "n2"], "slurm")
    *_, script, name, python = command.on_node(spec, [spec.python or "PYTHON"])
    words = shlex.join([*places.srun_command(spec, ["n1", "n2"]), "bash", "-c", "SCRIPT", name, python])
    for text in (command._FUNCTIONS, command._BEGIN, command._READY, command._LAST):
        script = script.replace(text.rstrip(), "...")
    own = re.sub(r"^_trainpkg_(dir|hint)=.*\n", "", script, flags=re.MULTILINE)
    return f"$ {words} -m trainpkg node ...\n{own}\n"


def test_each_example_of_a_site_starts_what_it_says() -> None:
    page = ROOT / "config/README.md"
    begin = page.read_text().partition("## The site:")[0].count("\n")
    shown = [yaml.safe_load(block.text) for block in blocks(page) if block.line > begin and block.language == "yaml"]
    text = "\n".join(started(tree["launch"]) for tree in shown if "launch" in tree)
    for word in ("module load", "conda activate", "apptainer exec", "--container-image"):
        assert word in text
    if os.environ.get("TRAINPKG_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), f"where the new lines are right: {REPAIR}"
