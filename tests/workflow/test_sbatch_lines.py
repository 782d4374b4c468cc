"""What is submitted, to the letter: golden lines for the shapes that people ask for."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.workflow.conftest import SNAKEMAKE

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "sbatch.txt"
REPAIR = "TRAINPKG_GOLDEN=write python -m pytest tests/workflow/test_sbatch_lines.py"

SHEET = """\
run\trecipe\tlaunch.nodes\tlaunch.gpus_per_node\tlaunch.device\tslurm.partition\tslurm.gpu_type\tslurm.gpu_request
one_gpu\tdigits_ddp\t1\t1\tcuda\t\t\t
one_node\tdigits_ddp\t1\t4\tcuda\t\t\t
two_nodes\tdigits_ddp\t2\t4\tcuda\t\t\t
cpus_alone\tdigits_ddp\t2\t2\tcpu\t\t\t
first_partition\tdigits_ddp\t1\t1\tcuda\tgpu\t\t
second_partition\tdigits_ddp\t1\t1\tcuda\tbig\t\t
hyphen\tdigits_ddp\t2\t4\tcuda\t\ta100-sxm4\t
typed\tdigits_ddp\t2\t4\tcuda\t\ta100\t
per_node\tdigits_ddp\t2\t4\tcuda\t\ta100\tgpus-per-node
gpus_unused\tdigits_ddp\t2\t2\tcpu\t\t\tgres
whole_nodes\tdigits_ddp\t2\t\tcuda\t\t\t
every_option\tevery_option\t4\t2\tcuda\tgpu\tv100\tgres
"""

EVERY_OPTION = """
strategy: fsdp
slurm:
  partition: gpu
  account: project
  qos: high
  constraint: "ib&v100"
  nodelist: "n[1-4]"
  exclude: n9
  cpus_per_task: 16
  mem_mb: 200000
  runtime: 12h
  signal: USR2@300
  extra: --reservation=training --switches=1
"""


@pytest.fixture
def sheet(checkout: Path, fake_slurm: Path) -> Path:
    (checkout / "config/runs.tsv").write_text(SHEET)
    recipes = checkout / "config/recipes"
    digits = re.sub(r"^(strategy|launch):.*\n", "", (recipes / "digits_ddp.yaml").read_text(), flags=re.M)
    (recipes / "digits_ddp.yaml").write_text(digits)
    (recipes / "every_option.yaml").write_text(digits + EVERY_OPTION)
    return checkout


def comment_of(arguments: list[str]) -> str:
    return arguments[arguments.index("--comment") + 1]


def normalised(arguments: list[str]) -> str:
    cwd = str(Path(arguments[arguments.index("-D") + 1]))
    *rest, wrap = arguments
    cores = re.search(r"--cores '?(\w+)'?", wrap)
    line = " ".join([*rest, f"--wrap=<snakemake --cores {cores.group(1) if cores else 'none'}>"])
    line = line.replace(cwd, "<workdir>")
    return re.sub(r"--job-name \S+", "--job-name <name>", line)


def train_lines(sheet: Path, fake_slurm: Path, *arguments: str, num_jobs: int | None = None) -> dict[str, str]:
    """Rule and wildcards of each `train` job -> its sbatch line, with what differs between machines replaced.

    Snakemake is killed once it has submitted all of them: nobody would ever say that they are done.
    """
    num_jobs = num_jobs or len((sheet / "config/runs.tsv").read_text().splitlines()) - 1
    with (sheet / "snakemake.log").open("w") as log:
        process = subprocess.Popen([*SNAKEMAKE, *arguments], cwd=sheet, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while len(jobs := sorted(fake_slurm.glob("job-*"))) < num_jobs:
            assert process.poll() is None and time.monotonic() < deadline, (sheet / "snakemake.log").read_text()
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = [job.read_text().splitlines() for job in jobs]
    return {comment_of(line): normalised(line) for line in lines}


SHARED = Path(__file__).resolve().parents[1] / "golden" / "sbatch_shared.txt"


@pytest.fixture
def small_runs(sheet: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five small runs of which two share a job, one with a time limit of its own, and a large one."""
    monkeypatch.chdir(sheet)
    recipe = (sheet / "config/recipes/digits_ddp.yaml").read_text()
    small = "slurm: {runs_per_job: 2, runtime: '5'}\nlaunch: {gpus_per_node: 1, device: cuda}\n"
    (sheet / "config/recipes/small.yaml").write_text(f"{recipe}{small}sweep: {{grid: {{seed: [0, 1, 2, 3, 4]}}}}\n")
    rows = "run\trecipe\tslurm.runtime\tlaunch.nodes\nquick\tsmall\t\t\nlarge\tdigits_ddp\t\t4\n"
    (sheet / "config/runs.tsv").write_text(rows)
    present_smoke_results(sheet)
    return sheet


def test_small_runs_share_jobs_in_sequence(small_runs: Path, fake_slurm: Path) -> None:
    lines = train_lines(small_runs, fake_slurm, "--executor", "slurm", "--profile", "cluster", num_jobs=4)
    text = "\n".join(f"{name}\n  sbatch {lines[name]}" for name in sorted(lines)) + "\n"
    if os.environ.get("TRAINPKG_GOLDEN") == "write":
        SHARED.write_text(text)
    assert text == SHARED.read_text(), f"where the new lines are right: {REPAIR}"


SCRIPT = """\
import pathlib, sys, time
began = time.time()
time.sleep(0.5)
pathlib.Path(sys.argv[1]).write_text(f"{began} {time.time()}")
sys.exit(sys.argv[1] in ("bad", "worse"))
"""
OWN = """\
entry: {script: own.py, args: [SHAPE]}
launch: {device: cpu, where: local, max_restarts: 0}
slurm: {runs_per_job: 4}
"""


def test_a_run_that_fails_does_not_keep_those_that_share_its_job_from_being_trained(
    sheet: Path, fake_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sbatch was given, run here, without a Slurm: the same two Snakemakes and `launch`."""
    monkeypatch.chdir(sheet)
    Path("own.py").write_text(SCRIPT)
    names = ("bad", "good", "fine", "worse")  # in the sheet's order or its reverse, one that fails comes first
    for name in names:
        Path(f"config/recipes/{name}.yaml").write_text(OWN.replace("SHAPE", name))
    Path("config/runs.tsv").write_text("run\trecipe\n" + "".join(f"{name}\t{name}\n" for name in names))
    present_smoke_results(sheet)
    train_lines(sheet, fake_slurm, "--executor", "slurm", "--profile", "cluster", num_jobs=1)
    [job] = fake_slurm.glob("job-*")
    [wrap] = re.findall(r"^--wrap=(.*)$", job.read_text(), re.M)
    subprocess.run([*SNAKEMAKE, "--unlock"], check=True, capture_output=True, timeout=60)
    done = subprocess.run(
        ["bash", "-c", wrap],
        env={**os.environ, "SLURM_JOB_ID": "4242"}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert sorted(path.parent.name for path in Path("results/runs").glob("*/train.json")) == ["fine", "good"], said
    spans = sorted(tuple(map(float, Path(name).read_text().split())) for name in names)
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans)), "one after the other"


def test_a_profile_in_which_they_would_not_is_refused(small_runs: Path, fake_slurm: Path) -> None:
    profile = small_runs / "cluster/profile.yaml"
    text = profile.read_text()
    for line in re.findall(r"^(?:resources|set-resource-scopes|group-components):.*$", text, re.M):
        profile.write_text(text.replace(line, ""))
        done = subprocess.run(
            [*SNAKEMAKE, "--executor", "slurm", "--profile", "cluster"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 1 and "slurm.runs_per_job > 1 needs three lines" in done.stdout + done.stderr, line


def present_smoke_results(sheet: Path) -> None:
    from trainpkg import sheet as reader

    for topology in reader.load(Path("config/config.yaml")).topologies():
        path = sheet / f"results/smoke/{topology}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def test_golden_lines(sheet: Path, fake_slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sheet)
    present_smoke_results(sheet)
    lines = train_lines(sheet, fake_slurm, "--executor", "slurm", "--profile", "cluster")
    text = "\n".join(f"{name}\n  sbatch {lines[name]}" for name in sorted(lines)) + "\n"
    if os.environ.get("TRAINPKG_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), f"where the new lines are right: {REPAIR}"


def test_what_the_sheet_leaves_open_comes_from_the_profile(
    sheet: Path, fake_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sheet)
    runs = "run\trecipe\tslurm.partition\tslurm.mem_mb\nopen\tdigits_ddp\t\t\nown\tdigits_ddp\tbig\t7000\n"
    (sheet / "config/runs.tsv").write_text(runs)
    present_smoke_results(sheet)
    profile = (sheet / "cluster/profile.yaml").read_text().split("default-resources:")[0]
    (sheet / "cluster/profile.yaml").write_text(
        f"{profile}default-resources:\n  slurm_partition: everyone\n  slurm_account: project\n  mem_mb: 3000\n"
        '  runtime: "attempt * 30"\n  qos: low\n  slurm_extra: "--reservation=training"\n'
    )
    lines = train_lines(sheet, fake_slurm, "--executor", "slurm", "--profile", "cluster")
    both = "-A project -p {} -t 30 --qos=low --mem {} --nodes=1"
    assert both.format("everyone", 3000) in lines["rule_train_wildcards_open"]
    assert both.format("big", 7000) in lines["rule_train_wildcards_own"]
    for line in lines.values():
        assert "--ntasks-per-node=1 --open-mode=append --signal=USR2@120 --exclusive --reservation=training" in line


@pytest.mark.parametrize("how", ["two words", "one word", "environment"])
def test_no_way_to_choose_slurm_caps_its_jobs_at_this_machines_cores(
    how: str, sheet: Path, fake_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sheet)
    (sheet / "config/runs.tsv").write_text("\n".join(SHEET.splitlines()[:2]) + "\n")
    present_smoke_results(sheet)
    arguments = {
        "two words": ("--executor", "slurm", "--profile", "cluster"),
        "one word": ("--executor=slurm", "--profile=cluster"),
        "environment": (),
    }[how]
    if how == "environment":
        monkeypatch.setenv("SNAKEMAKE_PROFILE", "cluster")
    [line] = train_lines(sheet, fake_slurm, *arguments).values()
    assert line.endswith("--wrap=<snakemake --cores all>")
    assert "--cpus-per-task=4" in line


def test_what_the_profile_runs_before_snakemake_comes_first(
    sheet: Path, fake_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sheet)
    profile = Path("cluster/profile.yaml")
    profile.write_text(re.sub(r"^# (precommand: .*?)#.*$", r"\1", profile.read_text(), flags=re.M))
    Path("config/runs.tsv").write_text("run\trecipe\none\tdigits_ddp\n")
    present_smoke_results(sheet)
    train_lines(sheet, fake_slurm, "--executor", "slurm", "--profile", "cluster", num_jobs=1)
    [job] = fake_slurm.glob("job-*")
    assert re.search(r"^--wrap=module load gcc/13 && \S+ -m snakemake ", job.read_text(), re.M), job.read_text()
