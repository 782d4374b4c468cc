"""Plans without running: the same jobs by every door, mistakes told before anything is submitted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks
from tests.workflow.conftest import ROOT, Snakemake


def jobs(output: str) -> dict[str, int]:
    """The table of job counts, rule names without a module's prefix."""
    table = output.split("Job stats:")[-1]
    return {name.removeprefix("mine_"): int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)$", table, re.M)}


DEMO = {"smoke": 2, "train": 2, "evaluate": 2, "summarise": 1, "all": 1, "total": 8}


def test_bare_snakemake_and_smoke_test(snakemake: Snakemake) -> None:
    assert jobs(snakemake("-n").stdout) == DEMO
    assert jobs(snakemake("-n", "smoke_test").stdout) == {"smoke": 2, "smoke_test": 1, "total": 3}


def test_without_slurm_installed(snakemake: Snakemake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program in ("which", "bash", "sh", "git", "tee"):
        found = subprocess.run(["which", program], capture_output=True, text=True, check=False).stdout.strip()
        if found:
            (tmp_path / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert jobs(snakemake("-n", "--executor", "slurm", "--profile", "cluster").stdout) == DEMO


def test_by_the_catalogue_s_door(snakemake: Snakemake) -> None:
    assert jobs(snakemake("-n", "-s", "workflow/Snakefile").stdout) == DEMO


@pytest.mark.parametrize("door", ["Snakefile", "workflow/Snakefile"])
def test_as_a_module_with_a_prefix_and_a_config_of_its_own(snakemake: Snakemake, checkout: Path, door: str) -> None:
    other = checkout / "other"
    other.mkdir()
    (other / "my.yaml").write_text(f"training: {{results_dir: out, sheet: {checkout}/config/runs.tsv, "
                                   f"recipes: {checkout}/config/recipes}}\n")  # fmt: skip
    [shown] = [block.text for block in blocks(ROOT / "README.md") if block.language == "snakemake"]
    for theirs, ours in (
        ("path/to/this/Snakefile", f"{checkout}/{door}"),
        ('prefix: "training"', 'prefix: "deep"'),
        (" training_", " mine_"),
    ):
        assert theirs in shown
        shown = shown.replace(theirs, ours)
    (other / "Snakefile").write_text(f'configfile: "my.yaml"\n{shown}')
    done = snakemake("-n", "-p", "--cores", "2", cwd=other)
    assert jobs(done.stdout) == DEMO
    assert "--out deep/out/runs/gpt/train.json" in done.stdout
    assert '--config-json \'{"results_dir": "out"' in done.stdout


def test_results_dir_moves_everything(snakemake: Snakemake, tmp_path: Path) -> None:
    done = snakemake("-n", "-p", "--config", f"results_dir={tmp_path}/scratch")
    assert f"--out {tmp_path}/scratch/runs/gpt/train.json" in done.stdout
    assert not re.search(r"output: results/", done.stdout)


def test_all_mistakes_are_told_at_once_before_anything_runs(snakemake: Snakemake, checkout: Path) -> None:
    (checkout / "config/runs.tsv").write_text(
        "run\trecipe\toptim.lr\toptim.lrr\na\tdigits_ddp\tfast\t\nb\tdigit_ddp\t\t\na\tgpt_fsdp\t\t\n"
    )
    done = snakemake("-n", status=1)
    text = done.stdout + done.stderr
    for part in (
        "column 'optim.lrr': unknown key; nearest valid key: 'optim.lr'",
        "config/runs.tsv:2: run 'a': optim.lr = 'fast'",
        "config/runs.tsv:3: run 'b': recipe = 'digit_ddp': there is no config/recipes/digit_ddp.yaml",
        "nearest recipe: 'digits_ddp'",
        "config/runs.tsv:4: run 'a': this name stands already in line 2",
    ):
        assert part in text
    assert "Traceback" not in text


def test_lint_and_format() -> None:
    """Of the files in the repository themselves."""
    for command in (["-m", "snakemake", "--lint"], ["-m", "snakefmt", "--check", "Snakefile", "workflow"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
