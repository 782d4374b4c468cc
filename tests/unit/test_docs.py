"""What the pages say can be typed: commands have these options, keys exist, links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pages import PAGES, ROOT, Block, blocks
from trainpkg.__main__ import COMMANDS, parser_for
from trainpkg.config import Run, Workflow
from trainpkg.config.keys import FREE_FORM, flatten
from trainpkg.config.sweep import Sweep
from trainpkg.convert import names
from trainpkg.launch.doctor.script import options
from trainpkg.launch.doctor.script.commands import Command, Parser
from trainpkg.schema import known_keys

BLOCKS = [block for page in PAGES for block in blocks(page)]
# programs of the system, whose options are not looked at; any other has a line in CHECKS
OTHERS = {
    *(
        ".",
        "bash",
        "base64",
        "cat",
        "cd",
        "chmod",
        "chrt",
        "conda",
        "cp",
        "export",
        "git",
        "head",
        "less",
        "ls",
        "mkdir",
    ),
    *("module", "mv", "nc", "nvidia-smi", "printf", "sacctmgr", "scontrol", "set", "sinfo", "source", "squeue", "ss"),
    *("tail", "true", "umask", "wait"),
}
FOREIGN = {"corenet-train", "accelerate", "tensorboard", "mlflow", "wandb", "trackio", "apptainer", "mpirun"}


def sh(language: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == language]


def commands(text: str) -> list[Command]:
    """The simple commands of a block, without loops' heads and bare assignments."""
    return [command for command in Parser(text).commands() if command.words]


def check_trainpkg(words: Sequence[str]) -> None:
    assert words and words[0] in COMMANDS, f"no subcommand: {words}"
    # a word that only a shell knows stands for any number
    parser_for(words[0]).parse_args([re.sub(r"\$\w+", "1", word) for word in words])


def check_snakemake(words: Sequence[str]) -> None:
    known, targets = snakemake_parser().parse_known_args(list(words))
    assert not targets, f"snakemake has no {targets}"
    assert known.executor in (None, "slurm")
    text = "".join(path.read_text() for path in [ROOT / "Snakefile", *ROOT.glob("workflow/rules/*.smk")])
    rules = set(re.findall(r"^rule (\w+):", text, re.MULTILINE))
    assert all(target in rules or target.startswith("results/") for target in known.targets), known.targets


@cache
def snakemake_parser() -> Any:
    from snakemake.cli import get_argument_parser

    return get_argument_parser()


def check_slurm(table: options.Table) -> Callable[[Sequence[str]], None]:
    def check(words: Sequence[str]) -> None:
        found, rest = options.parse(words, table)
        for option in found:
            assert option.name, f"{table.program} has no {option.written}"
            if option.name == "wrap":
                check_commands(option.value or "")
        if table is options.SRUN and words[rest:]:
            check_program(list(words[rest:]))

    return check


def check_make(words: Sequence[str]) -> None:
    text = (ROOT / "Makefile").read_text()
    for target in (word for word in words if "=" not in word and not word.startswith("-")):
        assert re.search(rf"^[^\n:=]*\b{re.escape(target)}\b[^\n:=]*:", text, re.MULTILINE), f"no target {target}"


def check_python(words: Sequence[str]) -> None:
    if words[:2] == ["-m", "trainpkg"]:
        check_trainpkg(words[2:])
    elif words[0] == "-m" and words[1].split(".")[0] in ("tests", "benchmarks", "trainpkg"):
        path = ROOT / words[1].replace(".", "/")
        assert path.with_suffix(".py").exists() or path.is_dir(), f"no module {words[1]}"
    elif words[:2] == ["-m", "pip"]:
        check_pip(words[2:])


def check_pip(words: Sequence[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        if asked := re.search(r"\[([\w,-]+)\]", word):
            assert set(asked[1].split(",")) <= set(extras), f"no such extra: {word}"


def check_torchrun(words: Sequence[str]) -> None:
    from torch.distributed.run import get_args_parser

    get_args_parser().parse_args(list(words))


CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "trainpkg": check_trainpkg,
    "snakemake": check_snakemake,
    "sbatch": check_slurm(options.SBATCH),
    "salloc": check_slurm(options.SRUN),
    "srun": check_slurm(options.SRUN),
    "make": check_make,
    "python": check_python,
    "python3": check_python,
    "pip": check_pip,
    "torchrun": check_torchrun,
}


def check_program(words: list[str]) -> None:
    program = words[0].rsplit("/", 1)[-1]
    if program in CHECKS:
        CHECKS[program](words[1:])
    else:
        assert program in OTHERS | FOREIGN, f"{program}: what checks its options? (CHECKS, OTHERS)"


def check_commands(text: str) -> None:
    for command in commands(text):
        check_program([word.text for word in command.words])


@pytest.mark.parametrize("block", sh("sh"))
def test_commands_can_be_typed(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    try:
        check_commands(block.text)
    except SystemExit as error:  # of argparse, which has said why
        pytest.fail(f"{block}: a command does not parse ({error})")


@pytest.mark.parametrize("block", sh("yaml"))
def test_keys_exist(block: Block) -> None:
    tree = yaml.safe_load(block.text)
    keys = {*known_keys(Run), *known_keys(Workflow)}
    if "sweep" in tree:
        Sweep.model_validate(tree.pop("sweep"))
    for key in flatten(tree):
        assert key in keys or key.startswith(tuple(f"{name}." for name in FREE_FORM)), f"{block}: {key}"
    if set(tree) <= set(Workflow.model_fields):
        Workflow.model_validate(tree)
    elif "entry" in tree:
        Run.model_validate({"run": "a", "recipe": "r", **tree})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_keys_in_the_text_exist(page: Path) -> None:
    sections = "|".join(sorted({key.split(".")[0] for key in known_keys(Run) if "." in key}))
    keys = {*known_keys(Run), *FREE_FORM, *(names.NAMES if page.name == "corenet.md" else ())}
    prefixes = tuple(f"{name}." for name in FREE_FORM)
    for key, suffix in re.findall(rf"`((?:{sections})\.([a-z_0-9.]+))(?=[:`=])", page.read_text()):
        if suffix not in ("py", "json", "smk", "log", "sh", "yaml", "safetensors", "csv"):
            assert key in keys or key.startswith(prefixes), key


@pytest.mark.parametrize("block", sh("python"))
def test_python_is_python(block: Block) -> None:
    ast.parse(block.text)


def test_every_block_says_its_language() -> None:
    known = {"sh", "yaml", "python", "snakemake", "json", "toml", "text"}
    assert not [str(block) for block in BLOCKS if block.language not in known]
    marks = {mark for block in BLOCKS for mark in block.marks}
    assert marks <= {"run", "slurm", "site"}


@cache
def sentences() -> str:
    """Our code, with literals that stand one after the other joined as Python joins them."""
    text = "".join(path.read_text() for path in (ROOT / "trainpkg").rglob("*.py"))
    return re.sub(r"""["']\s*\n\s*f?["']""", "", text)


def test_each_verdict_is_said_by_the_code() -> None:
    """The page quotes what `launch` says: of a sentence that was changed, here is the old one."""
    text = (ROOT / "docs/when-it-fails.md").read_text()
    rows = re.findall(r"^\| `(.+?)` \|", text.partition("## By verdict")[2].partition("\n## ")[0], re.MULTILINE)
    rows += re.findall(
        r"`([a-z][^`]+? [^`]+)` \|$", text.partition("## By symptom")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert len(rows) > 30
    for row in rows:
        for piece in row.split("…"):
            assert piece.strip(" ,:") in sentences(), f"no sentence of ours: {row!r}"


def anchors(page: Path) -> set[str]:
    """The fragments that headings can be linked by, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?:", target):
            continue
        path, _, fragment = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page.name}: {target}"
        if fragment:
            assert fragment in anchors(place), f"{page.name}: {target}"
