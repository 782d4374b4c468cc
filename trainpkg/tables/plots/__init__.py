"""Plots of the tables, as SVG: the same bytes for the same numbers. `canvas` has the look, each other module a kind.

Every plot is there whatever was run; one without numbers says so, so that rules and reports know their files by name.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure

from trainpkg.tables.plots import canvas
from trainpkg.tables.plots.learning import (
    Records,
    evaluation_over_steps,
    loss_over_data,
    loss_over_steps,
    loss_over_time,
    throughput_over_steps,
)
from trainpkg.tables.plots.memory import memory
from trainpkg.tables.plots.restarts import restarts
from trainpkg.tables.plots.sweep import sweep
from trainpkg.tables.plots.world_size import throughput_over_world_size


def plots(
    runs: pd.DataFrame,
    steps: pa.Table,
    evaluations: pd.DataFrame,
    attempts: pd.DataFrame,
    share: int = 0,
    num_shares: int = 1,
) -> dict[str, bytes]:
    """File name -> SVG, from the four tables; of several shares those of one."""
    with canvas.style():
        makers = list(figures(runs, steps, evaluations, attempts).items())
        return {name: canvas.svg(make()) for name, make in makers[share::num_shares]}


def figures(
    runs: pd.DataFrame, steps: pa.Table, evaluations: pd.DataFrame, attempts: pd.DataFrame
) -> dict[str, Callable[[], Figure]]:
    """File name -> what makes the figure; to be called within `canvas.style()`."""
    # Texts that are compared run by run: pandas hands out Arrow's one at a time.
    runs, evaluations, attempts = (
        table.astype(dict.fromkeys(_names(table), object)) for table in (runs, evaluations, attempts)
    )
    records = Records(runs, steps)
    return {
        "loss_over_steps.svg": lambda: loss_over_steps(records),
        "loss_over_data.svg": lambda: loss_over_data(records),
        "loss_over_time.svg": lambda: loss_over_time(records),
        "evaluation_over_steps.svg": lambda: evaluation_over_steps(records, evaluations),
        "sweep.svg": lambda: sweep(runs),
        "throughput_over_steps.svg": lambda: throughput_over_steps(records),
        "throughput_over_world_size.svg": lambda: throughput_over_world_size(runs),
        "memory.svg": lambda: memory(runs),
        "restarts.svg": lambda: restarts(runs, attempts),
    }


def _names(table: pd.DataFrame) -> list[str]:
    return [name for name in ("run", "recipe", "status", "source", "verdict") if name in table]
