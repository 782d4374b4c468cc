"""The house keeps its limits: sizes, what start-up may import, help texts that explain themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from trainpkg.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "trainpkg").rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_SNAKEFILE_LINES = 300, 60, 60


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes_and_docstrings(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE_LINES
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is responsible for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, node.name


def test_the_snakefile_is_short_and_holds_no_function() -> None:
    text = (ROOT / "Snakefile").read_text()
    assert text.count("\n") <= MAX_SNAKEFILE_LINES
    assert "def " not in text


def imported_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "module",
    [
        "trainpkg.launch.node.command",
        "trainpkg.launch.plan",
        "trainpkg.launch.start.zygote",
        "trainpkg.launch.doctor.nodes",
    ],
)
def test_a_node_needs_the_standard_library_alone(module: str) -> None:
    names = imported_by(module) - {"trainpkg", "__main__"} - set(sys.stdlib_module_names)
    added = {name for name in names if not name.startswith(("_", "sitecustomize", "encodings"))}
    assert added <= imported_by("json"), "start-up counts on every node, and containers may hold nothing else"


@pytest.mark.parametrize("module", ["trainpkg.launch.head.job", "trainpkg.tables.summarise", "trainpkg.sheet"])
def test_what_runs_once_per_job_imports_no_torch(module: str) -> None:
    assert not {"torch", "snakemake", "numba"} & imported_by(module)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert len(text.split()) > 20
    if command:
        options = [line.split() for line in text.splitlines() if line.startswith("  --")]
        assert all(len(words) > 1 for words in options)


def test_every_dependency_is_pinned() -> None:
    """In the one file of constraints, for everything that this environment holds."""
    pins = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    import importlib.metadata
    import re

    for requirement in importlib.metadata.requires("trainpkg") or []:
        name = re.split(r"[\s<>=!;\[]", requirement)[0].lower()
        assert name in pins, name
