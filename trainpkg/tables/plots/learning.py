"""Plots over the course of a training: loss over steps, data and time, throughput, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure

from trainpkg.tables.plots import lines
from trainpkg.tables.plots.canvas import MAX_LINES
from trainpkg.tables.plots.lines import Panel, Units
from trainpkg.tables.plots.series import Array, Curves, Rows, blocks, curves, numbers
from trainpkg.tables.variants import Variants, variants

TIME: Units = ((3 * 3600.0, 3600.0, "hours"), (5 * 60.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
AMOUNT: Units = ((1e9, 1e9, "billions"), (1e6, 1e6, "millions"), (1e4, 1e3, "thousands"))
EACH_RECORD = "Each record is the mean loss over all ranks since the record before it."


@dataclass(frozen=True)
class Records:
    """The runs and steps tables, with what several plots need of them worked out once."""

    runs: pd.DataFrame
    steps: pa.Table
    columns: dict[str, Array] = field(default_factory=dict)

    @cached_property
    def where(self) -> tuple[Rows, Rows]:
        return blocks(self.steps["run"].to_pandas(), self.runs)

    @cached_property
    def variants(self) -> Variants:
        return variants(self.runs)

    @cached_property
    def with_tokens(self) -> set[str]:
        """Recipes whose records count tokens."""
        known = np.concatenate([[0], np.cumsum(np.isfinite(self.column("tokens")))])
        starts, stops = self.where
        return set(self.runs["recipe"][known[stops] > known[starts]])

    def column(self, name: str) -> Array:
        if name not in self.columns:
            self.columns[name] = numbers(self.steps[name])
        return self.columns[name]

    def curves(self, x: Array, y: Array) -> dict[str, Curves]:
        return curves(self.runs, self.where, x, y, self.variants)


def loss_over_steps(records: Records) -> Figure:
    return _loss(records, "step", "optimizer step", "Training loss over steps", ())


def loss_over_time(records: Records) -> Figure:
    return _loss(records, "time_s", "training time", "Training loss over time", TIME)


def _loss(records: Records, over: str, x_label: str, heading: str, units: Units) -> Figure:
    found = records.curves(records.column(over), records.column("loss"))
    panels = {
        recipe: Panel(its, records.variants, x_label, "training loss", units=units) for recipe, its in found.items()
    }
    return lines.figure(heading, EACH_RECORD, panels, x_label, "training loss")


def loss_over_data(records: Records) -> Figure:
    """Over tokens where the recipe counts them, else over samples."""
    tokens, samples = records.column("tokens"), records.column("samples")
    found = records.curves(np.where(np.isfinite(tokens), tokens, samples), records.column("loss"))
    panels = {}
    for recipe, its in found.items():
        counted = "tokens" if recipe in records.with_tokens else "samples"
        panels[recipe] = Panel(its, records.variants, counted, "training loss", units=AMOUNT)
    return lines.figure("Training loss over tokens or samples", EACH_RECORD, panels, "tokens", "training loss")


def throughput_over_steps(records: Records) -> Figure:
    """In tokens per second where the recipe counts them, else in samples per second, over all ranks."""
    tokens, samples = records.column("tokens_per_second"), records.column("samples_per_second")
    found = records.curves(records.column("step"), np.where(np.isfinite(tokens), tokens, samples))
    panels = {}
    for recipe, its in found.items():
        label = "tokens per second" if recipe in records.with_tokens else "samples per second"
        words = ("slowest", "fastest")
        panels[recipe] = Panel(
            its, records.variants, "optimizer step", label, Curves.means, words, high_is_good=True, from_zero=True
        )
    explanation = "Over all ranks, since the record before. A dip is a wait: for data, a checkpoint, a slow node."
    return lines.figure("Throughput over steps", explanation, panels, "optimizer step", "samples per second")


def evaluation_over_steps(records: Records, evaluations: pd.DataFrame) -> Figure:
    """The metric that each recipe is judged by: during the training as a line, of the exact evaluation as a diamond."""
    exact = evaluations[evaluations["source"] == "evaluate"]
    during = evaluations[evaluations["source"] == "train"]
    # Where nothing was evaluated during the training, the exact evaluation is all there is.
    table = pd.concat([during, exact[~exact["run"].isin(set(during["run"]))]], ignore_index=True)
    where, step = blocks(table["run"], records.runs), numbers(table["step"])
    panels = {}
    for recipe, (metric, mode) in judged_by(records.runs).items():
        column = f"eval_{metric}"
        its = curves(records.runs, where, step, numbers(table[column]), records.variants) if column in table else {}
        if recipe not in its:
            continue
        y_label, high = f"{metric} ({better(mode)} is better)", mode == "max"
        words = ("worst", "best") if high else ("best", "worst")
        few = len(its[recipe]) <= MAX_LINES
        marks = _points(exact[exact["run"].isin(set(its[recipe].runs))], column) if few else {}
        panels[recipe] = Panel(
            its[recipe], records.variants, "optimizer step", y_label, words=words, high_is_good=high, marks=marks
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
