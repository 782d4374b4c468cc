"""The subcommand `status`: all runs in one table, once or again and again."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainpkg import sheet
from trainpkg.errors import UserError
from trainpkg.launch.slurm import queue
from trainpkg.status.look import STATES, Observer, Standing

QUEUE_EVERY_S = 30.0  # the controller belongs to everybody
PLAIN_WIDTH = 200  # columns where the output is no terminal
ROWS = 40
STYLES = {"running": "green", "starting": "green", "queued": "yellow", "stopped": "yellow", "failed": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sheet.add_config_arguments(parser)
    parser.add_argument("--results", type=Path, help="where the results are, if not in the config's results_dir")
    parser.add_argument("--watch", type=float, nargs="?", const=5.0, metavar="SECONDS", help="again every 5 seconds")
    parser.add_argument("--state", choices=STATES, action="append", help="only runs in this state; may be given again")
    parser.add_argument("--all", action="store_true", help=f"every run, where only the first {ROWS} lines are shown")
    parser.add_argument("--json", action="store_true", help="one JSON object per run instead of the table")


def main(args: argparse.Namespace) -> int:
    """Print the table; with --watch until Ctrl-C."""
    if args.watch is not None and not args.watch > 0:
        raise UserError(f"--watch {args.watch:g}: seconds above 0")
    look = watcher(Observer(sheet.load(sheet.config_of(args)), args.results))
    if args.json:
        for standing in chosen(look()[0], args.state):
            print(json.dumps(dataclasses.asdict(standing)))
        return 0
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else PLAIN_WIDTH)

    def page() -> Group:
        standings, queue_answers = look()
        room = console.height - 6 if terminal and args.watch is not None else ROWS
        return render(standings, args.state, None if args.all else max(room, 1), queue_answers)

    if args.watch is None:
        console.print(page())
        return 0
    try:
        with Live(page(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(args.watch)
                live.update(page(), refresh=True)
    except KeyboardInterrupt:
        return 0


def watcher(observer: Observer) -> Callable[[], tuple[list[Standing], bool]]:
    """Returns what looks at files and queue, at the latter no more often than every 30 s."""
    jobs, asked_s = None, -math.inf

    def look() -> tuple[list[Standing], bool]:
        nonlocal jobs, asked_s
        if time.monotonic() - asked_s >= QUEUE_EVERY_S:
            jobs, asked_s = queue.own_jobs(), time.monotonic()
        return observer.look(jobs, time.time()), jobs is not None

    return look


def chosen(standings: Sequence[Standing], states: Sequence[str] | None) -> list[Standing]:
    """Those in these states (None: all): what moves or failed first, finished ones last, else as in the sheet."""
    order = {state: place for place, state in enumerate(STATES)}
    kept = [one for one in standings if not states or one.state in states]
    return sorted(kept, key=lambda one: order[one.state])


def render(
    standings: Sequence[Standing], states: Sequence[str] | None, max_rows: int | None, queue_answers: bool
) -> Group:
    """The counts, the table, and what it leaves out."""
    counts = Counter(one.state for one in standings)
    line = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    rows = chosen(standings, states)
    shown = rows[:max_rows]
    with_jobs = any(one.job for one in shown)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (
        "run",
        "state",
        *(["job", "Slurm says"] if with_jobs else []),
        "step",
        "left",
        "loss",
        "per second",
    ):
        table.add_column(heading, justify="right" if heading in ("step", "left", "loss", "per second") else "left")
    table.add_column("last verdict", overflow="fold")
    for one in shown:
        job = [one.job, one.job_words] if with_jobs else []
        cells: list[str | Text] = [
            one.run,
            Text(one.state, STYLES.get(one.state, "")),
            *job,
            _step(one),
            duration(one.eta_s),
        ]
        loss = "" if one.loss is None else f"{one.loss:.4g}"
        rate = "" if one.rate is None else f"{one.rate:,.0f} {one.unit}"
        table.add_row(*cells, loss, rate, Text(one.verdict))
    notes = []
    if len(rows) > len(shown):
        notes.append(f"and {len(rows) - len(shown)} more: --all, --state")
    if not queue_answers:
        notes.append("Slurm's queue: no answer from squeue here")
    return Group(f"{len(standings)} runs: {line}", table, *notes)


def _step(one: Standing) -> str:
    if one.max_steps is None:
        return "" if one.step is None else str(one.step)
    return f"{one.step or 0}/{one.max_steps}"


def duration(seconds: float | None) -> str:
    """`3 h 05 min`, to two units."""
    if seconds is None:
        return ""
    minutes, seconds = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
