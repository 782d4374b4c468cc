"""Recipes made of CoreNet's configs: values, where CoreNet's defaults count, and what is said of every other line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainpkg.__main__ import main
from trainpkg.config import Run
from trainpkg.config.keys import flatten
from trainpkg.convert import names
from trainpkg.schema import known_keys

ROOT = Path(__file__).parents[2]
# in the shape of the published configs of a language model and of an image classifier
LANGUAGE = """\
taskname: a language model
_anchor_dtype: &_anchor_dtype bfloat16
common: {run_label: train, auto_resume: true, grad_clip: 1.0, save_interval_freq: 5000, log_freq: 500}
train_eval_pipeline: {name: fsdp_train_eval_pipeline}
fsdp: {sharding_strategy: full_shard, parameter_datatype: *_anchor_dtype, gradient_reduction_datatype: float32}
dataset: {train_batch_size0: 16, disable_val: true, workers: 4}
optim: {name: adamw, weight_decay: 0.1, no_decay_bn_filter_bias: true, adamw: {beta1: 0.9, beta2: 0.95, eps: 1e-8}}
scheduler:
  is_iteration_based: true
  max_iterations: 350000
  warmup_iterations: 5000
  cosine: {max_lr: 0.0012, min_lr: 1.2e-4}
model: {activation_checkpointing: true}
"""
IMAGES = """\
common: {mixed_precision: true, accum_freq: 2, tensorboard_logging: true, k_best_checkpoints: 3}
dataset: {root_train: /mnt/imagenet, train_batch_size0: 128, eval_batch_size0: 100}
image_augmentation:
  mixup: {enable: true}
scheduler: {max_epochs: 300, polynomial: {power: 1}, name: polynomial}
ema: {enable: true, momentum: 0.0005}
whatever: [1, 2]
"""
OURS = {"task": "images", "model": {"name": "vit"}, "data": {"name": "digits"}}


def converted(folder: Path, text: str, *words: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The keys of the recipe, flat, and its text."""
    path = folder / "theirs.yaml"
    path.write_text(text)
    assert main(["convert", "corenet", str(path), *words]) == 0
    told = capsys.readouterr().out
    tree = yaml.safe_load(told)
    Run.model_validate({"run": "a", "recipe": "r", **OURS, **tree})
    assert set(flatten(tree)) <= set(known_keys(Run))
    return flatten(tree), told


def test_a_language_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, told = converted(tmp_path, LANGUAGE, "--nodes=16", "--gpus-per-node=8", capsys=capsys)
    assert found == {
        "seed": 0, "strategy": "fsdp",
        "train.precision": "bf16", "train.global_batch": 16 * 128, "train.max_steps": 350_000,
        "train.activation_checkpointing": True,
        "optim.name": "adamw", "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.weight_decay": 0.1,
        "optim.decay": "matrices", "optim.clip_norm": 1.0,
        "optim.schedule": "cosine", "optim.lr": 0.0012, "optim.min_lr_ratio": 0.1, "optim.warmup_steps": 5000,
        "checkpoint.every_steps": 5000, "checkpoint.keep_every_steps": 5000,
        "logging.every_steps": 500, "logging.eval_every_steps": 350_000,
        "launch.nodes": 16, "launch.gpus_per_node": 8,
    }  # fmt: skip
    assert (
        "  global_batch: 2048                # line 6: dataset.train_batch_size0, common.accum_freq (default), x"
        in told
    )
    left = [line for line in told.splitlines() if line.startswith("#   line ")]
    assert [line.split(" = ")[0].split()[-1] for line in left] == [
        "taskname", "_anchor_dtype", "common.run_label", "common.auto_resume", "dataset.workers"
    ]  # fmt: skip


def test_an_image_classifier_gets_what_corenet_takes_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, told = converted(tmp_path, IMAGES, "--nodes=1", "--gpus-per-node=8", "--samples=1281167", capsys=capsys)
    steps = 626  # 1,281,167 over 8 GPUs, 128 at a time, two batches per step: the last one is left over
    assert found == {
        "seed": 0, "strategy": "ddp",
        "train.precision": "fp16", "train.global_batch": 2048, "train.accumulation": 2, "train.max_steps": 300 * steps,
        "optim.name": "sgd", "optim.momentum": 0.9, "optim.weight_decay": 4e-5, "optim.decay": "all",
        "optim.clip_norm": None, "optim.schedule": "linear", "optim.lr": 0.1, "optim.min_lr_ratio": 0.0,
        "optim.warmup_steps": 0, "ema.decay": 0.9995,
        "checkpoint.every_steps": steps, "checkpoint.keep_best": 3,
        "logging.eval_every_steps": steps, "logging.trackers": ["tensorboard"], "evaluate.batch": 100,
        "launch.nodes": 1, "launch.gpus_per_node": 8,
    }  # fmt: skip
    for line, key, why in ((2, "dataset.root_train", "data set"), (4, "image_augmentation.mixup.enable", "transforms")):
        assert re.search(rf"#   line {line}: {re.escape(key)} = .*: .*{why}", told)
    assert f"#   line 7: whatever = [1, 2]: {names.UNKNOWN}" in told
    assert "# Note: common.accum_freq = 2: CoreNet adds" in told
    assert "power" not in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "scheduler: {name: multi_step}",
            "line 1: scheduler.name = 'multi_step': not here; cosine stands in its place",
        ),
        ("scheduler: {name: polynomial}", "scheduler.polynomial.power (default) bends the rate"),
        ("optim: {name: adam}", "optim.weight_decay (default): adam adds it to gradients"),
        ("optim: {name: adamw, adamw: {eps: 1e-6}}", "line 1: optim.adamw.eps = '1e-6': it is 1e-8 here"),
        ("train_eval_pipeline: {name: mine}", "is a pipeline of your own"),
        ("train_eval_pipeline: {name: fsdp_train_eval_pipeline}", "gradients are summed in fp32 here"),
        (
            "sampler: {name: variable_batch_sampler}",
            "line 1: sampler.name = 'variable_batch_sampler': CoreNet's batch f",
        ),
        (
            "common: {accum_after_epoch: 3}",
            "line 1: common.accum_after_epoch: the batch is the same from the first step",
        ),
        (
            "dataset: {disable_val: true}",
            "line 1: dataset.disable_val: logging.eval_every_steps is to be train.max_steps",
        ),
        (
            "common: {save_all_checkpoints: true}",
            "line 1: common.save_all_checkpoints: say checkpoint.keep_every_steps",
        ),
        ("dataset: {percentage_of_samples: 10}", "line 1: dataset.percentage_of_samples = 10: --samples is to count"),
        ("scheduler: {cosine: {max_lr: 5.0e-6}}", "scheduler.cosine.min_lr (default): CoreNet's rate rises to it"),
        (
            "scheduler: {warmup_iterations: 9}",
            "line 1: scheduler.warmup_iterations: CoreNet's rate falls from step 0 on",
        ),
        (
            "common: {eval_every_k_iterations: 7}\ndataset: {disable_val: true}",
            "#   line 1: common.eval_every_k_iterations = 7: `logging.eval_every_steps`",
        ),
        ("scheduler: {max_epochs: 5}", "train.max_steps is 5 epochs of your data; say their samples: --samples N"),
    ],
)
def test_what_is_not_quite_the_same_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    assert main(["convert", "corenet", str(path), "--nodes=1", "--gpus-per-node=1"]) == 0
    assert f"# Note: {told}" in (out := capsys.readouterr().out) or told in out
    assert yaml.safe_load(out)["optim"]["name"]


@pytest.mark.parametrize(
    ("pipeline", "sharding", "wanted"),
    [
        ("fsdp_train_eval_pipeline", "full_shard", {"strategy": "fsdp"}),
        ("fsdp_train_eval_pipeline", "grad_op_shard", {"strategy": "fsdp", "fsdp.reshard_after_forward": False}),
        ("fsdp_train_eval_pipeline", "no_shard", {"strategy": "ddp"}),
        ("default", "full_shard", {"strategy": "ddp"}),
    ],
)
def test_strategies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pipeline: str, sharding: str, wanted: dict[str, Any]
) -> None:
    text = f"train_eval_pipeline: {{name: {pipeline}}}\nfsdp: {{sharding_strategy: {sharding}}}\n"
    text += "scheduler: {is_iteration_based: true}\n"
    found, _ = converted(tmp_path, text, "--nodes=1", "--gpus-per-node=2", capsys=capsys)
    assert {key: found[key] for key in found if key == "strategy" or key.startswith("fsdp.")} == wanted
    assert found["train.precision"] == ("fp32" if pipeline == "default" else "bf16")


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        (None, ["--nodes=1", "--gpus-per-node=1"], "No such file"),
        ("[1]", ["--nodes=1", "--gpus-per-node=1"], "expected `key: value` lines"),
        ("a: [", ["--nodes=1", "--gpus-per-node=1"], "no valid YAML"),
        ("a: 1", ["--gpus-per-node=1"], "--nodes is missing: CoreNet's dataset.train_batch_size0 is per GPU"),
        ("a: 1", ["--nodes=1"], "--gpus-per-node is missing: CoreNet's dataset.train_batch_size0 is per GPU"),
        ("common: {results_loc: x}", ["--nodes=1", "--gpus-per-node=1", "--run-corenet"], "common.results_loc = 'x'"),
        (
            "ema: {enable: 'yes'}",
            ["--nodes=1", "--gpus-per-node=1"],
            "line 1: ema.enable = 'yes': true or false is expected",
        ),
        ("common: {seed: x}", ["--nodes=1", "--gpus-per-node=1"], "line 1: common.seed = 'x': a value of type int"),
        (
            "scheduler: {name: fixed}",
            ["--nodes=1", "--gpus-per-node=1"],
            "scheduler.fixed.lr (default): a rate above 0 is needed",
        ),
        (
            "ddp:\n  rank: 0",
            ["--nodes=1", "--gpus-per-node=1", "--run-corenet"],
            "line 2: ddp.rank = 0: CoreNet's YAML has the last",
        ),
        ("a: 1", ["--nodes=1", "--gpus-per-node=1", "--out=theirs.yaml"], "the file exists already"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    text: str | None, words: list[str], told: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("theirs.yaml").write_text(text)
    assert main(["convert", "corenet", "theirs.yaml", *words]) == 2
    assert told in capsys.readouterr().err


def test_repeated_samples_make_an_epoch_longer_unless_it_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--nodes=1", "--gpus-per-node=2", "--samples=1000")
    text = "dataset: {train_batch_size0: 5}\nscheduler: {max_epochs: 2}\nsampler: {num_repeats: 3}\n"
    assert converted(tmp_path, text, *words, capsys=capsys)[0]["train.max_steps"] == 2 * 300
    cut = text.replace("3}", "3, truncated_repeat_aug_sampler: true}")
    assert converted(tmp_path, cut, *words, capsys=capsys)[0]["train.max_steps"] == 2 * 100


def test_a_section_that_stands_twice_counts_as_it_stands_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "optim: {name: adamw, weight_decay: 0.1}\noptim: {name: sgd}\nscheduler: {is_iteration_based: true}\n"
    found, _ = converted(tmp_path, text, "--nodes=1", "--gpus-per-node=1", capsys=capsys)
    assert (found["optim.name"], found["optim.weight_decay"]) == ("sgd", 4e-5)


def test_every_name_of_ours_is_a_key_or_a_section() -> None:
    keys = {*known_keys(Run), "ema", "data", "profile", "results_dir", "launch.command", "package.module"}
    for text in [*names.NAMES.values(), *names.FAMILIES.values(), *names.PIPELINES.values()]:
        for word in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?:[:`])", text):
            assert word in keys, text


def test_the_page_has_every_option() -> None:
    page = (ROOT / "docs/corenet.md").read_text()
    assert names.table() in page, "repair: put what `python -m trainpkg convert corenet --names` prints into the page"
