"""Another workflow around this one: its preprocessing feeds `train`, its analysis reads the tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.workflow.conftest import Snakemake
from tests.workflow.test_dry_runs import jobs

OUTER = """\
configfile: "outer.yaml"


rule all:
    input:
        "analysis.csv",


module training:
    snakefile: "CHECKOUT/Snakefile"
    config: config["training"]
    prefix: "training"


use rule * from training as training_*


rule summarise:
    output:
        "summary.txt",
    shell:
        "touch {output}"


rule prepare:
    input:
        "raw.txt",
    output:
        "data/numbers.txt",
    shell:
        "sort -n {input} > {output}"


rule analyse:
    input:
        rules.training_summarise.output.runs_csv,
    output:
        "analysis.csv",
    shell:
        "cp {input} {output}"
"""
CONFIG = """\
training:
  results_dir: out
  sheet: my_runs.tsv
  recipes: my_recipes
  launch: {device: cpu, max_restarts: 0}
"""
RECIPE = """\
entry: {script: fit.py, args: [data/numbers.txt, "{run_dir}/fit.txt"], outputs: ["{run_dir}/fit.txt"]}
inputs: [data/numbers.txt]
"""
SCRIPT = """\
import pathlib, sys, trainpkg
numbers = [float(line) for line in pathlib.Path(sys.argv[1]).read_text().split()]
trainpkg.log(len(numbers), loss=sum(numbers), accuracy=numbers[0])
pathlib.Path(sys.argv[2]).write_text(str(numbers))
"""


@pytest.mark.timeout(400)
def test_preprocessing_feeds_training_and_analysis_reads_the_tables(snakemake: Snakemake, checkout: Path) -> None:
    outer = checkout.parent / "outer project"
    (outer / "my_recipes").mkdir(parents=True)
    (outer / "Snakefile").write_text(OUTER.replace("CHECKOUT", str(checkout)))
    (outer / "outer.yaml").write_text(CONFIG)
    (outer / "my_recipes/fit.yaml").write_text(RECIPE)
    (outer / "my_runs.tsv").write_text("run\trecipe\nfirst\tfit\n")
    (outer / "fit.py").write_text(SCRIPT)
    (outer / "raw.txt").write_text("3\n1\n2\n")
    results = outer / "training/out"
    (results / "smoke").mkdir(parents=True)
    (results / "smoke/1xall-cpu-own-spawn.json").write_text("{}")  # other tests run real ones
    planned = {"prepare": 1, "training_train": 1, "training_summarise": 1, "analyse": 1, "all": 1, "total": 5}
    dry = snakemake("-n", "--cores", "2", cwd=outer)
    assert jobs(dry.stdout) == planned
    assert "localrules directive" not in dry.stderr
    snakemake("--cores", "2", cwd=outer, timeout=180)
    assert (results / "runs/first/fit.txt").read_text() == "[1.0, 2.0, 3.0]"
    assert analysed(outer) == ("finished", 3, 6, 1)
    assert "Nothing to be done" in snakemake("--cores", "2", cwd=outer).stderr
    (outer / "raw.txt").write_text("5\n7\n")
    snakemake("--cores", "2", cwd=outer, timeout=180)
    assert analysed(outer) == ("finished", 2, 12, 5)
    assert len(list((results / "runs/.old").iterdir())) == 1, "what was fitted to other numbers is kept"


def analysed(outer: Path) -> tuple[str | float, ...]:
    with (outer / "analysis.csv").open() as lines:
        [row] = csv.DictReader(lines)
    return row["status"], *(float(row[name]) for name in ("step", "final_loss", "eval_accuracy"))
