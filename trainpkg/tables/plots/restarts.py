"""When each run's attempts ran and how each ended, on one time line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from trainpkg.tables.plots import canvas
from trainpkg.tables.plots.canvas import COLOURS, INK, End
from trainpkg.tables.plots.lines import BAND, counted
from trainpkg.tables.plots.series import numbers
from trainpkg.tables.rows.frames import utc

MAX_ROWS = 25
WIDTH, ROW_HEIGHT, ABOVE_ALL = 5.5, 0.2, 1.0
HEADING = "Attempts over time"
LONGEST_S = 10 * 365 * 86400.0
UNITS = (
    (2 * 86400.0, 86400.0, "days"),
    (2 * 3600.0, 3600.0, "hours"),
    (5 * 60.0, 60.0, "minutes"),
    (0.0, 1.0, "seconds"),
)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: the word for it and how its bar is drawn."""

    word: str
    colour: str
    hatch: str = ""


ENDINGS = {
    "finished": Ending("finished", COLOURS[0]),
    "again": Ending("saved, to be run again", COLOURS[5]),
    "failed": Ending("failed", COLOURS[1], "/////"),
    "running": Ending("running", "#FFFFFF"),
    "": Ending("end unknown", "#BBBBBB", "....."),
}


def restarts(runs: pd.DataFrame, attempts: pd.DataFrame) -> Figure:
    """A row per run where these are few; else how many ran at a time, and the rows of those with the most attempts."""
    its = _timed(runs, attempts)
    if its.empty:
        return canvas.empty(HEADING, "no attempts yet", "time", "")
    begin = its["start_s"].min()
    last = max(its["end_s"].max() - begin, 1.0)
    by, unit = next((by, word) for least, by, word in UNITS if last >= least)
    its = its.assign(start=(its["start_s"] - begin) / by, end=(its["end_s"] - begin) / by)
    shown = _most_eventful(its)
    many = its["run"].nunique() > len(shown)
    which = "runs that lost the most time to restarts" if _is_eventful(its) else "first runs, none started twice"
    title = f"the {len(shown)} {which}, of {its['run'].nunique()}"
    titles = ["attempts at a time", title] if many else [counted(len(shown), "run")]
    figure, axes = canvas.panels(HEADING, "", titles)
    canvas.explain(
        figure, ["A bar is an attempt: one launch, one life of a Slurm job. In place: restarts of all ranks within it."]
    )
    ends = [_rows(axes[-1], its[its["run"].isin(shown)], shown)]
    heights = [max(3, len(shown)) * ROW_HEIGHT]
    if many:
        ends.insert(0, _at_a_time(axes[0], its))
        heights.insert(0, ABOVE_ALL)
    for ax in axes:
        ax.set_xlim(-0.01 * last / by, 1.01 * last / by)
    axes[-1].set_xlabel(f"{unit} since {utc(begin)}")
    present = [ending for key, ending in ENDINGS.items() if key in set(its["ending"])]
    key = [(ending.word, ending.colour, ending.hatch) for ending in present]
    canvas.arrange(figure, ends, WIDTH, heights, canvas.left_of(shown), key)
    return figure


def _timed(runs: pd.DataFrame, attempts: pd.DataFrame) -> pd.DataFrame:
    """The attempts whose start is known, with `start_s` and `end_s` (unix) and `ending`."""
    # What is no date has no place on a time line: a file may be damaged, a clock may have been set meanwhile.
    start = np.where(attempts["start_utc"].notna(), numbers(attempts["start_unix_s"]), np.nan)
    duration = numbers(attempts["duration_s"])
    end = start + np.where(duration < LONGEST_S, duration, np.nan)
    # One without an end is drawn to the last moment that anything is known of, if its run still runs.
    latest = np.nanmax(np.r_[end, start]) if np.isfinite(start).any() else np.nan
    verdict = attempts["verdict"].astype(object).where(attempts["verdict"].notna(), "")
    running = attempts["run"].isin(set(runs.loc[runs["status"] == "running", "run"])) & (verdict == "")
    running &= ~attempts["run"].duplicated(keep="last")
    ending = verdict.where(verdict.isin(list(ENDINGS)), "failed").mask(running, "running")
    end = np.where(running, latest, np.where(np.isfinite(end), end, start))
    timed = attempts.assign(start_s=start, end_s=np.maximum(start, end), ending=ending)
    return timed[np.isfinite(start)]


def _is_eventful(its: pd.DataFrame) -> bool:
    return bool(its["hours_lost"].gt(0).any() or its["run"].duplicated().any())


def _most_eventful(its: pd.DataFrame) -> list[str]:
    """Runs in the order of their first start; where there are too many, those that lost the most time."""
    per_run = its.groupby("run", sort=False).agg(
        start=("start", "min"), lost=("hours_lost", "sum"), attempts=("attempt", "size")
    )
    if len(per_run) > MAX_ROWS:
        eventful = per_run[per_run["lost"].gt(0) | per_run["attempts"].gt(1)]
        per_run = eventful if len(eventful) else per_run
        per_run = per_run.sort_values(["lost", "attempts"], ascending=False, kind="stable").head(MAX_ROWS)
    return list(per_run.sort_values("start", kind="stable").index)


def _rows(ax: Axes, its: pd.DataFrame, shown: Sequence[str]) -> list[End]:
    canvas.rows(ax, shown)
    height = {run: len(shown) - 1 - index for index, run in enumerate(shown)}
    for key, ending in ENDINGS.items():
        part = its[its["ending"] == key]
        y = part["run"].map(height).to_numpy(dtype=np.float64)
        corners = [(part[side].to_numpy(), y + rise) for side, rise in
                   (("start", -0.31), ("end", -0.31), ("end", 0.31), ("start", 0.31))]  # fmt: skip
        bars = list(np.stack([np.column_stack(corner) for corner in corners], axis=1))
        edge = "white" if ending.hatch else ending.colour
        ax.add_collection(
            PolyCollection(bars, facecolor=ending.colour, hatch=ending.hatch, edgecolor=edge, linewidth=0)
        )
        # A bar shorter than a line is wide would vanish.
        outline = INK if key == "running" else ending.colour
        ax.add_collection(PolyCollection(bars, facecolor="none", edgecolor=outline, linewidth=0.6))
    return [_said(its[its["run"] == run], height[run]) for run in shown]


def _said(its: pd.DataFrame, y: float) -> End:
    failed = int((its["ending"] == "failed").sum())
    in_place = int((its["num_generations"].fillna(1) - 1).clip(lower=0).sum())
    lost = float(np.nansum(numbers(its["hours_lost"])))
    words = [counted(len(its), "attempt"), f"{failed} failed" if failed else ""]
    words += [f"{in_place} in place" if in_place else "", f"{lost:.2g} h lost" if lost else ""]
    return End(float(its["end"].max()), y, ", ".join(filter(None, words)), INK, bare=True)


def _at_a_time(ax: Axes, its: pd.DataFrame) -> list[End]:
    """How many attempts ran at each moment."""
    times = np.r_[its["start"].to_numpy(), its["end"].to_numpy()]
    changes = np.r_[np.ones(len(its)), -np.ones(len(its))]
    # Starts before ends, or an attempt without a length would count as less than none.
    order = np.lexsort((-changes, times))
    at, level = times[order], np.cumsum(changes[order])
    # What happens within a pixel need not be drawn.
    edges = np.linspace(at[0], at[-1], 400)
    index = np.searchsorted(at, edges, side="right") - 1
    ax.fill_between(edges, level[index], step="post", color=BAND, linewidth=0)
    ax.step(edges, level[index], where="post", color=COLOURS[0], linewidth=1)
    ax.set_ylim(0, 1.1 * level.max())
    peak = int(level.argmax())
    return [End(float(at[peak]), float(level[peak]), f"at most {int(level[peak])}", COLOURS[0], None)]
