"""What restarts, money and peaks come to, by hand; runs that differ in their seed alone; the best of a recipe."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_tree import NOW_S, Tree, evaluation, expected, has, record, row

from trainpkg.tables.rows import costs
from trainpkg.tables.summarise import summarise

START = NOW_S - 86_400


def attempts_of(tree: Tree, name: str = "a") -> list[dict[str, Any]]:
    found = summarise(tree.results, [expected(name)], NOW_S).attempts
    return [{key: None if pd.isna(value) else value for key, value in its.items()} for its in found.to_dict("records")]


def test_what_an_end_before_a_checkpoint_costs(tmp_path: Path) -> None:
    """Steps take 10 s. The first launch did 100 and saved 80, the second began at 81, was put off and waited."""
    tree = Tree(tmp_path).finished(expected("a"), [record(10, 1.0)], steps=200, time_s=2000.0)
    common = {"counts_steps": True, "restarts": 0}
    tree.attempt("a", 1, "failed", START, 0.5, step_first=1, step_last=100, saved_after=80, **common)
    tree.attempt("a", 2, "again", START + 2400, 0.25, step_first=81, step_last=140, saved_after=140, **common)
    tree.attempt("a", 3, "finished", START + 7200, 0.5, step_first=141, step_last=200, saved_after=200, **common)
    first, second, third = attempts_of(tree)
    # 20 steps of 10 s were done in vain; the first start itself every run needs.
    has(first, steps_gained=80, steps_lost=20, hours_lost=200 / 3600, wait_s=None)
    # A quarter of an hour brought 60 steps: what is left of it was the start.
    has(second, steps_gained=60, steps_lost=0, hours_lost=300 / 3600, wait_s=600.0)
    has(third, steps_gained=60, steps_lost=0, hours_lost=1200 / 3600, wait_s=3900.0)
    its = row(summarise(tmp_path, [expected("a")], NOW_S).runs, "a")
    assert its["hours_lost_to_restarts"] == pytest.approx(1700 / 3600)


NOT_KNOWN: dict[str, tuple[dict[str, Any], float | None]] = {
    "finished at once": ({"verdict": "finished", "step_first": 1, "step_last": 40}, 0.0),
    "died before its first step": ({"verdict": "failed", "counts_steps": True}, 1.0),
    "a program that counts no steps": ({"verdict": "failed", "counts_steps": False}, None),
    "nobody recorded an end": ({"verdict": None, "hours": None}, None),
    "stopped where it had saved": ({"verdict": "again", "step_first": 1, "step_last": 30, "saved_after": 30}, 0.0),
    "failed after a save": ({"verdict": "failed", "step_first": 1, "step_last": 30, "saved_after": 12}, 9 / 3600),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "hours"), NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_hours_lost_of_a_first_launch(tmp_path: Path, facts: dict[str, Any], hours: float | None) -> None:
    facts = dict(facts)
    tree = Tree(tmp_path).config(expected("a")).metrics("a", [record(10, 1.0), record(20, 1.0)])
    tree.attempt("a", 1, facts.pop("verdict"), START, facts.pop("hours", 1.0), **facts)
    assert attempts_of(tree)[0]["hours_lost"] == (None if hours is None else pytest.approx(hours))


def test_a_restart_in_place_costs_what_its_launch_did_not_gain(tmp_path: Path) -> None:
    tree = Tree(tmp_path).finished(expected("a"), [record(10, 1.0)], steps=40, time_s=400.0)
    tree.attempt("a", 1, "finished", START, 0.25, step_first=1, step_last=40)
    tree.json("a", "launch/1/1/plan.json", {"world_size": 2})
    has(attempts_of(tree)[0], num_generations=2, steps_gained=40, hours_lost=500 / 3600)


# --- money, MFU ---


def test_each_run_costs_what_its_own_config_says(tmp_path: Path) -> None:
    tree = Tree(tmp_path).finished(
        expected("a", slurm__price_per_gpu_hour=2.5, slurm__currency="EUR"), [record(1, 1.0)]
    )
    tree.finished(expected("free"), [record(1, 1.0)])
    sheet = [expected("a", slurm__price_per_gpu_hour=9.0), expected("free")]
    runs = summarise(tmp_path, sheet, NOW_S).runs
    has(row(runs, "a"), gpu_hours=2.0, cost=5.0, currency="EUR")  # it ran at this price, whatever the sheet says now
    has(row(runs, "free"), gpu_hours=2.0, cost=None, currency=None)


GPT = {"model.name": "gpt", "model.dim": 100, "model.depth": 2, "model.context": 50, "train.precision": "bf16"}
ROW = {"gpu": "NVIDIA H100 80GB HBM3", "num_parameters": 1_000_000, "tokens_per_second": 1e6, "world_size": 2}


def test_mfu_by_hand() -> None:
    # (6 x 10^6 + 12 x 2 x 100 x 50) FLOPs per token, 10^6 tokens/s, over 2 x 989.4 TFLOP/s.
    assert costs.mfu_percent(ROW, GPT) == pytest.approx(100 * 6.12e12 / (2 * 989.4e12))
    vit = {**GPT, "model.name": "vit", "model.patch": 2}  # 16 tokens per image
    flops = (6e6 + 12 * 2 * 100 * 16) * 1000 * 16
    its = {**ROW, "samples_per_second": 1000.0}
    assert costs.mfu_percent(its, vit) == pytest.approx(100 * flops / (2 * 989.4e12))


@pytest.mark.parametrize(
    ("gpu", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.4), ("NVIDIA H100 PCIe", "fp16", 756.0), ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("Tesla V100-SXM2-32GB", "bf16", None), ("Tesla V100-SXM2-32GB", "fp16", 125.0), ("Tesla T4", "fp16", 65.0),
        ("NVIDIA L40S", "bf16", 362.0), ("NVIDIA L4", "bf16", 121.0), ("NVIDIA A10", "bf16", 125.0),
        ("NVIDIA A100-PCIE-40GB", "bf16", 312.0), ("NVIDIA GeForce RTX 4090", "bf16", 165.2), ("Other", "bf16", None),
        ("NVIDIA L40", "bf16", None), ("NVIDIA A10G", "bf16", None), (None, "bf16", None),
    ],
)  # fmt: skip
def test_peak_by_the_name_of_the_device(gpu: str | None, precision: str, peak: float | None) -> None:
    assert costs.peak_tflops(gpu, {"train.precision": precision}) == peak
    assert costs.peak_tflops(gpu, {"train.precision": precision, "launch.peak_tflops": 3.0}) == 3.0


@pytest.mark.parametrize("lacking", ["gpu", "num_parameters", "tokens_per_second", "world_size"])
def test_mfu_is_empty_where_it_is_not_known(lacking: str) -> None:
    assert costs.mfu_percent({**ROW, lacking: None}, GPT) is None
    assert costs.mfu_percent(ROW, {**GPT, "model.name": "conv"}) is None


# --- seeds, the best ---


def test_runs_that_differ_in_their_seed_alone_are_one_row(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    sheet = [expected(f"s{seed}", seed=seed) for seed in range(3)]
    sheet += [expected("fast", optim__lr=0.1), expected("failed", seed=7), expected("absent", seed=8)]
    for number, one in enumerate(sheet[:4]):
        final = {"train_loss": 1.0 + number}
        tree.finished(one, [record(10, 1.0), evaluation(10, accuracy=0.5 + number / 10)], final=final)
    tree.config(sheet[4]).metrics("failed", [record(10, 99.0)]).attempt("failed", 1, "failed", START, 1.0)
    seeds = summarise(tmp_path, sheet, NOW_S).seeds
    assert list(seeds["first_run"]) == ["s0", "fast"]
    first, alone = ({key: None if pd.isna(v) else v for key, v in its.items()} for its in seeds.to_dict("records"))
    has(first, num_runs=5, num_finished=3, seeds="0 1 2 7 8", final_loss_mean=2.0, final_loss_std=1.0, final_loss_num=3)
    assert first["eval_accuracy_mean"] == pytest.approx(0.6)
    assert first["total_gpu_hours"] == 8.0  # what failed costs too
    has(alone, num_runs=1, final_loss_mean=4.0, final_loss_std=None, **{"optim.lr": 0.1})


def test_the_best_of_a_recipe_by_its_own_metric_and_direction(tmp_path: Path) -> None:
    tree, sheet = Tree(tmp_path), []
    for recipe, mode in (("up", "max"), ("down", "min"), ("mixed", "min")):
        for number, value in enumerate((0.5, 0.9, 0.9, math.nan)):
            metric = f"metric{number}" if recipe == "mixed" else "metric"
            sheet.append(expected(f"{recipe}{number}", recipe))
            best = {"metric": metric, "mode": mode, "value": None if math.isnan(value) else value, "step": 10}
            tree.finished(sheet[-1], [record(10, 1.0)], best=best)
    runs = summarise(tmp_path, sheet, NOW_S).runs
    places = [None if pd.isna(place) else place for place in runs["place_in_recipe"]]
    assert places == [3, 1, 1, None, 1, 2, 2, None, None, None, None, None]
