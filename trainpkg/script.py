"""What a program of the user's own may call: `trainpkg.log`. It imports no torch, and needs no launcher to run.

The numbers go into the run's metrics.jsonl, as those of our own trainer do, and the step to the rank's launcher, so
that a verdict says at which step a rank ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch import spec as specs
from trainpkg.launch.spec import Spec
from trainpkg.metric_lines import Lines, append
from trainpkg.runtime.report import Reporter

METRICS = "metrics.jsonl"


def log(step: int, **metrics: Any) -> None:
    """Say how far this rank is, and on rank 0 what was measured: numbers, or tensors of one element.

    `step` counts optimiser steps that are done. `loss`, `lr`, `grad_norm`, `epoch`, `samples` and `tokens` (so far),
    `samples_per_second`, `tokens_per_second`, `step_time_s`, `data_time_s` and `memory_mb` are fields of a training
    record; every other number is a metric of an evaluation at this step (an `eval_` in front of its name is dropped).
    A program that was not started by `trainpkg launch` may call it too: then nothing is written.

    Raises:
        UserError: `step` is no whole number from 0 on.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise UserError(f"trainpkg.log: step = {step!r} is no whole number from 0 on")
    writer = _writer(os.getpid())
    if writer is not None:
        writer.log(step, metrics)


@cache
def _writer(pid: int) -> Writer | None:
    """The one of this process, made when it is first wanted: a forked process has no part in its parent's."""
    path = os.environ.get("TRAINPKG_SPEC")
    return Writer(specs.read(Path(path)), os.environ) if path else None


class Writer:
    """One rank's records. Of a program once per node (`launch.command`) the first process on the first node writes."""

    def __init__(self, spec: Spec, env: Mapping[str, str]) -> None:
        rank = int(env.get("RANK") or env.get("NODE_RANK") or 0)
        # whose ranks are not ours, their launcher is told nothing of them; and our own trainer tells by itself
        tells = bool(spec.script) and env.get("RANK") is not None
        self._reporter = Reporter.from_environment(env) if tells else Reporter(rank, None)
        self._reporter.hello()
        self._path = Path(spec.run_dir) / METRICS if rank == 0 else None
        self._lines = Lines(spec.attempt, int(env.get("TRAINPKG_GENERATION") or 0), spec.began_unix_s)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._reporter.step(step, None)
        if self._path is not None:
            append(self._path, self._lines.of({**metrics, "global_step": step}, time.time()))
