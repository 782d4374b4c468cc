"""Config, recipes and sheet: what resolves to what, and every mistake told at once with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainpkg import schema, sheet
from trainpkg.__main__ import main
from trainpkg.config import Run, Workflow
from trainpkg.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """\
task: images
model: {name: conv, width: 8}
data: {name: digits}
optim: {lr: 1e-4}
train: {max_steps: 10, global_batch: 8}
launch: {device: cpu}
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`load(sheet's text, recipe=..., **config)` in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(rows: str, recipe: str = RECIPE, tried: Any = lambda _: (), **config: Any) -> sheet.Sheet:
        Path("config/recipes").mkdir(parents=True, exist_ok=True)
        Path("config/recipes/r.yaml").write_text(recipe)
        Path("config/runs.tsv").write_text(rows)
        return sheet.load(config, tried=tried)

    return call


def mistakes(load: Any, *arguments: Any, **config: Any) -> str:
    with pytest.raises(UserError) as error:
        load(*arguments, **config)
    return str(error.value)


def test_sheet_over_recipe_over_config(load: Any) -> None:
    loaded = load(
        "run\trecipe\toptim.lr\tslurm.partition\na\tr\t\t\nb\tr\t3e-2\tgpu\n",
        slurm={"partition": "main", "mem_mb": 5},
    )
    a, b = loaded.runs["a"], loaded.runs["b"]
    assert (a.optim.lr, b.optim.lr) == (1e-4, 3e-2), "YAML reads 1e-4 as text; the key's type makes it a number"
    assert (a.slurm.partition, b.slurm.partition, b.slurm.mem_mb) == ("main", "gpu", 5)
    assert a.strategy_for(1) == "single"
    assert a.strategy_for(2) == "ddp"


def test_identity_alone_makes_the_fingerprint(load: Any) -> None:
    rows = "run\trecipe\tlaunch.nodes\tslurm.mem_mb\tcheckpoint.every_steps\ttrain.accumulation\tseed\toptim.lr\n"
    runs = load(rows + "a\tr\n" + "b\tr\t2\t9\t7\t2\n" + "c\tr\t\t\t\t\t1\n" + "d\tr\t\t\t\t\t\t0.5\n").runs
    prints = {name: run.fingerprint() for name, run in runs.items()}
    assert prints["a"] == prints["b"]
    assert len({prints["a"], prints["c"], prints["d"]}) == 3


def test_every_mistake_is_told_once_with_its_place(load: Any) -> None:
    text = mistakes(
        load,
        "run\trecipe\toptim.lrr\toptim.lr\na\tr\tx\tfast\na\tr\nb\tq\nc\tr\t\t1\t2\nd/../e\tr\nf\n",
        RECIPE.replace("width", "widht").replace("max_steps: 10", "max_steps: 0"),
        slrum={"partition": "x"},
        slurm={"partiton": "x"},
    )
    for part in (
        "config: slrum = {'partition': 'x'}: unknown key; nearest valid key: 'slurm'",
        "config: slurm.partiton = 'x': unknown key; nearest valid key: 'slurm.partition'",
        "config/runs.tsv:1: column 'optim.lrr': unknown key; nearest valid key: 'optim.lr'",
        "config/runs.tsv:2: run 'a': optim.lr = 'fast': Input should be a valid number",
        "config/runs.tsv:3: run 'a': this name stands already in line 2",
        "config/runs.tsv:4: run 'b': recipe = 'q': there is no config/recipes/q.yaml; nearest",
        "config/runs.tsv:5: 5 cells under 4 columns",
        "config/runs.tsv:6: run 'd/../e': run = 'd/../e'",
        "config/runs.tsv:7: run 'f': the cell under 'recipe' is empty; recipes are ['r']",
        "config/recipes/r.yaml: model.widht = 8: unknown key; nearest valid key: 'model.width'",
        "config/recipes/r.yaml: train.max_steps = 0: Input should be greater than or equal to 1",
    ):
        if "nearest" in part and part.endswith("nearest"):
            part = part.removesuffix("; nearest")
        assert part in text
        assert text.count(part) == 1


def test_an_unknown_key_hides_nothing_else(load: Any) -> None:
    recipe = "entry: {script: train.py, args: ['{rnk}']}\nlaunch: {nods: 2, device: cpu, backend: command}\nepochs: 3\n"
    with pytest.raises(UserError) as error:
        load("run\trecipe\tlaunch.command\na\tr\tx {entry}\nb\tr\ty {entry} {rang}\nc\tr\tz {entry}\n", recipe)
    for part in (
        "launch.nods = 2: unknown key; nearest valid key: 'launch.nodes'",
        "epochs = 3: unknown key",
        "entry.args: '{rnk}': unknown placeholder {rnk}; nearest: {rank}",
        "launch.command = 'y {entry} {rang}': unknown placeholder {rang}",
    ):
        assert part in str(error.value)
    assert str(error.value).count("unknown key") == 2
    assert "is missing" not in mistakes(load, "run\trecipe\na\tr\n", recipe.replace("entry", "entri"))


def test_what_is_tried_is_told_with_wrong_keys(load: Any) -> None:
    def tried(runs: Any) -> list[str]:
        return [f"tried {run.run}" for run in runs]

    text = mistakes(load, "run\trecipe\toptim.lr\na\tr\t\nb\tr\tfast\n", RECIPE, tried=tried)
    assert "optim.lr = 'fast'" in text and "tried a" in text and "tried b" not in text
    text = mistakes(load, "run\trecipe\na\tr\n", RECIPE.replace("width", "widht"), tried=tried)
    assert "model.widht = 8: unknown key" in text and "tried a" in text


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            "launch.nodes=2 train.global_batch=3 train.accumulation=2",
            "train.global_batch = 3 leaves a rank of 2 only 1 sample",
        ),
        ("launch.nodes=2 strategy=single", "strategy = 'single' contradicts 2 ranks"),
        ("model.name=gpt", "model.width = 8: unknown key"),
        ("task=language", "model.name = 'conv' cannot do task = 'language'"),
        ("data.name=python_text", "data.name = 'python_text' cannot feed task = 'images'"),
        ("model.name=resnet", "model.name = 'resnet'"),
        ("strategy=zero3", "strategy = 'zero3'"),
        ("launch.devices=[0,1] launch.gpus_per_node=4", "launch.devices = [0, 1] names 2 devices"),
        ("optim.lr=nan", "optim.lr = 'nan'"),
        ("train=3", "column 'train': unknown key; nearest valid key: 'train."),
    ],
)
def test_contradictions(load: Any, row: str, sentence: str) -> None:
    keys = dict(part.split("=") for part in row.split())
    rows = "run\trecipe\t" + "\t".join(keys) + "\na\tr\t" + "\t".join(keys.values()) + "\n"
    assert sentence in mistakes(load, rows)


def test_keys_that_a_program_of_ones_own_does_not_read_are_refused_where_the_run_itself_gives_them(load: Any) -> None:
    own = "entry: {script: train.py}\nlaunch: {progress_timeout_s: 5, max_restarts: 1}\nevaluate: {batch: 7}\n"
    rows = "run\trecipe\tcheckpoint.keep_last\na\tr\t3\nb\tr\n"
    text = mistakes(load, rows, own, logging={"every_steps": 5})
    why = "is given, but this run trains a program of your own (entry or launch.command), which does not read it"
    assert f"config/recipes/r.yaml: launch.progress_timeout_s {why}" in text
    assert f"config/recipes/r.yaml: evaluate.batch {why}" in text
    assert f"config/runs.tsv:2: run 'a': checkpoint.keep_last {why}" in text
    assert "max_restarts" not in text and "every_steps" not in text and "'b'" not in text
    assert load("run\trecipe\na\tr\n", RECIPE + "checkpoint: {keep_last: 3}\n").runs["a"].checkpoint.keep_last == 3


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("task: [images\n", "recipe config/recipes/r.yaml: no valid YAML"),
        ("- a\n", "expected `key: value` lines, found list"),
        ("", "expected `key: value` lines, found NoneType"),
        ("task: images\n", "model is missing: The network."),
        ("task: images\ntask: images\n" + RECIPE[13:], "the key 'task' stands twice"),
    ],
)
def test_broken_recipes(load: Any, recipe: str, sentence: str) -> None:
    assert sentence in mistakes(load, "run\trecipe\na\tr\n", recipe)


def test_a_sheet_from_a_spreadsheet_program(load: Any) -> None:
    loaded = load("\ufeffrun\trecipe\tseed\r\n# a comment\r\n\r\na\t r \t 3\r\n")
    assert loaded.runs["a"].seed == 3


def test_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 2
    assert "config file config/config.yaml: No such file" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"sheet = 'config/runs.tsv': there is no such file"):
        sheet.load({})


def test_one_smoke_test_per_topology(load: Any) -> None:
    rows = "run\trecipe\tlaunch.nodes\tseed\n" + "".join(f"r{n}{s}\tr\t{n}\t{s}\n" for n in (1, 2, 4) for s in (0, 1))
    loaded = load(rows)
    assert loaded.topologies() == {"1xall-cpu-single-spawn": "r10", "2xall-cpu-ddp-spawn": "r20"}
    text = RECIPE.replace("images", "language").replace("conv, width: 8", "gpt").replace("digits", "python_text")
    rows = "run\trecipe\tlaunch.gpus_per_node\tsequence_parallel\nwhole\tr\t4\t\nshared\tr\t4\t2\n"
    assert load(rows, text).topologies() == {"1x4-cpu-ddp-spawn": "whole", "1x4-cpu-ddp-sp2-spawn": "shared"}


def test_generated_files_match_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for path, text in schema.generated(Path("config")).items():
        assert path.read_text() == text, "run `python -m trainpkg schema --write`"


def test_every_key_is_described_and_marked() -> None:
    for model in (Run, Workflow):
        for key in schema.known_keys(model).values():
            assert key.description.endswith("."), key.name
