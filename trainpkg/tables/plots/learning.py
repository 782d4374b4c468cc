"""Plots over the course of a training: loss over steps, data and time, throughput, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from trainpkg.tables.plots import lines
from trainpkg.tables.plots.canvas import MAX_LINES
from trainpkg.tables.plots.lines import Panel, Units
from trainpkg.tables.plots.series import Array, Curve, blocks, curves, numbers
from trainpkg.tables.plots.variants import variants

TIME: Units = ((3 * 3600.0, 3600.0, "hours"), (5 * 60.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
AMOUNT: Units = ((1e9, 1e9, "billions"), (1e6, 1e6, "millions"), (1e4, 1e3, "thousands"))
EACH_RECORD = "Each record is the mean loss over all ranks since the record before it."


@dataclass(frozen=True)
class Records:
    """The runs and steps tables, with what several plots need of them worked out once."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    columns: dict[str, Array] = field(default_factory=dict)

    @cached_property
    def where(self) -> dict[str, slice]:
        return blocks(self.steps)

    @cached_property
    def variants(self) -> dict[str, str]:
        return variants(self.runs)

    @cached_property
    def with_tokens(self) -> set[str]:
        """Recipes whose records count tokens."""
        known = np.isfinite(self.column("tokens"))
        have = {run for run, rows in self.where.items() if known[rows].any()}
        return set(self.runs.loc[self.runs["run"].isin(have), "recipe"])

    def column(self, name: str) -> Array:
        if name not in self.columns:
            self.columns[name] = numbers(self.steps[name])
        return self.columns[name]

    def curves(self, x: Array, y: Array) -> dict[str, list[Curve]]:
        return curves(self.runs, self.where, x, y, self.variants)


def loss_over_steps(records: Records) -> Figure:
    return _loss(records, "step", "optimizer step", "Training loss over steps", ())


def loss_over_time(records: Records) -> Figure:
    return _loss(records, "time_s", "training time", "Training loss over time", TIME)


def _loss(records: Records, over: str, x_label: str, heading: str, units: Units) -> Figure:
    found = records.curves(records.column(over), records.column("loss"))
    panels = {recipe: Panel(its, x_label, "training loss", _end, units=units) for recipe, its in found.items()}
    return lines.figure(heading, EACH_RECORD, panels, x_label, "training loss")


def loss_over_data(records: Records) -> Figure:
    """Over tokens where the recipe counts them, else over samples."""
    tokens, samples = records.column("tokens"), records.column("samples")
    found = records.curves(np.where(np.isfinite(tokens), tokens, samples), records.column("loss"))
    panels = {
        recipe: Panel(
            its, "tokens" if recipe in records.with_tokens else "samples", "training loss", _end, units=AMOUNT
        )
        for recipe, its in found.items()
    }
    return lines.figure("Training loss over tokens or samples", EACH_RECORD, panels, "tokens", "training loss")


def throughput_over_steps(records: Records) -> Figure:
    """In tokens per second where the recipe counts them, else in samples per second, over all ranks."""
    tokens, samples = records.column("tokens_per_second"), records.column("samples_per_second")
    found = records.curves(records.column("step"), np.where(np.isfinite(tokens), tokens, samples))
    panels = {}
    for recipe, its in found.items():
        label = "tokens per second" if recipe in records.with_tokens else "samples per second"
        panels[recipe] = Panel(its, "optimizer step", label, _typical, ("slowest", "fastest"), True, from_zero=True)
    explanation = "Over all ranks, since the record before. A dip is a wait: for data, a checkpoint, a slow node."
    return lines.figure("Throughput over steps", explanation, panels, "optimizer step", "samples per second")


def evaluation_over_steps(records: Records, evaluations: pd.DataFrame) -> Figure:
    """The metric that each recipe is judged by: during the training as a line, of the exact evaluation as a diamond."""
    exact = evaluations[evaluations["source"] == "evaluate"]
    during = evaluations[evaluations["source"] == "train"]
    # Where nothing was evaluated during the training, the exact evaluation is all there is.
    table = pd.concat([during, exact[~exact["run"].isin(set(during["run"]))]], ignore_index=True)
    where, step = blocks(table), numbers(table["step"])
    panels = {}
    for recipe, (metric, mode) in judged_by(records.runs).items():
        column = f"eval_{metric}"
        if column not in table:
            continue
        its_runs = records.runs[records.runs["recipe"] == recipe]
        its = curves(its_runs, where, step, numbers(table[column]), records.variants).get(recipe, [])
        if its:
            if len(its) <= MAX_LINES:
                marks = _points(exact[exact["run"].isin({curve.run for curve in its})], column)
                its = [replace(curve, mark=marks.get(curve.run)) for curve in its]
            its_best_is_high = mode == "max"
            words = ("worst", "best") if its_best_is_high else ("best", "worst")
            panels[recipe] = Panel(
                its, "optimizer step", f"{metric} ({better(mode)} is better)", _end, words, its_best_is_high
            )
    explanation = "Lines: evaluations during the training. Diamonds: the exact evaluation of the chosen checkpoint."
    return lines.figure("Evaluation over steps", explanation, panels, "optimizer step", "metric")


def _points(exact: pd.DataFrame, column: str) -> dict[str, tuple[float, float]]:
    points = zip(exact["run"], numbers(exact["step"]), numbers(exact[column]), strict=True)
    return {run: (float(step), float(value)) for run, step, value in points if np.isfinite(step + value)}


def judged_by(runs: pd.DataFrame) -> Mapping[str, tuple[str, str]]:
    """Recipe -> name and direction (min, max) of the metric that most of its runs name as theirs."""
    known = runs[runs["best_metric_name"].notna() & runs["best_metric_mode"].isin(["min", "max"])]
    found: dict[str, tuple[str, str]] = {}
    for recipe, its in known.groupby("recipe", sort=False):
        counts = its.groupby(["best_metric_name", "best_metric_mode"], sort=True).size()
        metric, mode = counts.index[int(counts.to_numpy().argmax())]
        found[str(recipe)] = (str(metric), str(mode))
    return found


def better(mode: str) -> str:
    return "lower" if mode == "min" else "higher"


def _end(curve: Curve) -> float:
    # One record is noise.
    return float(np.median(curve.y[-3:]))


def _typical(curve: Curve) -> float:
    return float(np.median(curve.y))
