"""What one rank does from birth to death: read the spec, join the others, run the stage, report, end deliberately.

Called in a forked child, or as `python -m trainpkg.runtime.rank`. The stages are `smoke`, `train` and `evaluate`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import yaml

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.runtime.distributed import (
    RankContext,
    connect,
    context_from_environment,
    is_collective,
    is_lost_peer,
    leave,
)
from trainpkg.runtime.report import Reporter
from trainpkg.runtime.signals import StopRequest

STAGES = {"smoke": "trainpkg.smoke", "train": "trainpkg.train", "evaluate": "trainpkg.evaluate"}
FINISHED, EXCEPTION, LOST_PEER, AGAIN = 0, 1, 3, 75


def main() -> NoReturn:
    """Run the stage of TRAINPKG_SPEC and end the process; never returns."""
    live(run_stage)


def live(work: Callable[[Reporter, StopRequest], tuple[str, RankContext | None]]) -> NoReturn:
    """Do the work and end the process deliberately; never returns.

    `work` returns its verdict, `finished` or `again`, and the context of the group that it has joined, if it has.
    Exit status: 0 finished, 75 run again, 2 user error (or its own), 3 lost peer (victim), 1 any other exception.
    """
    stop = StopRequest()
    stop.install()  # before anything slow: the default action of these signals is death
    # What the parent imported is not garbage: looking through it would copy its pages, once per rank and collection.
    gc.freeze()
    reporter = Reporter.from_environment(os.environ)
    reporter.hello()
    try:
        verdict, ctx = work(reporter, stop)
        status = AGAIN if verdict == "again" else FINISHED
        # Whatever holds the group (DDP's reducer) must be gone before the group is: its destructor joins the gloo
        # thread while holding the GIL, and that thread waits for the GIL.
        gc.collect()
        if ctx is not None:
            leave(ctx)
        reporter.done(verdict)
        if ctx is not None:
            dist.destroy_process_group()
    except BaseException as error:  # noqa: BLE001  the end of the process: every exception becomes a record
        status = report_exception(reporter, error)
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter finalisation with living gloo threads aborts now and then: a finished run would count as failed.
    os._exit(status)


def run_stage(reporter: Reporter, stop: StopRequest) -> tuple[str, RankContext]:
    """Returns the verdict, `finished` or `again`. On return no local of the stage is alive."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit():
        torch.set_num_threads(int(threads))  # a forked child ignores the variable: torch read it at import
    spec = read_spec(os.environ.get("TRAINPKG_SPEC"))
    stage = spec.get("stage")
    if stage not in STAGES:
        raise UserError(f"stage = {stage!r} in TRAINPKG_SPEC; valid are {', '.join(STAGES)}")
    run = read_run(Path(spec["config_path"]))
    ctx = context_from_environment(os.environ, run, spec, reporter, stop)
    stop.file = Path(spec["run_dir"]) / "stop" if ctx.is_main else None  # one rank asks the file system, not thousands
    ctx = connect(ctx)
    return importlib.import_module(STAGES[stage]).main(ctx, run, spec), ctx


def read_spec(path: str | None) -> dict[str, Any]:
    """The launcher's spec.json; UserError where it is missing or no JSON object."""
    if not path:
        raise UserError("TRAINPKG_SPEC is unset; ranks are started by `python -m trainpkg launch`")
    try:
        spec = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"TRAINPKG_SPEC = {path}: {error}") from error
    if not isinstance(spec, dict):
        raise UserError(f"TRAINPKG_SPEC = {path} holds no JSON object")
    return spec


def read_run(path: Path) -> Run:
    """The resolved config that `launch` wrote, without its extra key `fingerprint`."""
    try:
        # libyaml's parser where PyYAML has it: the other takes a tenth of what a restart may take
        tree = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"config {path}: {error}") from error
    tree.pop("fingerprint", None)
    return Run.model_validate(tree)


def report_exception(reporter: Reporter, error: BaseException) -> int:
    """Print and report the exception, return the exit status. No barrier here: the others may be gone."""
    text = "".join(traceback.format_exception(error))
    user_error, victim = isinstance(error, UserError), is_lost_peer(error)
    if user_error:
        print(f"trainpkg: error: {error}", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)
    reporter.exception(error, text, victim=victim, user_error=user_error, collective=is_collective(error))
    return status_of(error)


def status_of(error: BaseException) -> int:
    """The exit status of a rank that this exception ends."""
    if isinstance(error, UserError):
        return error.status
    return LOST_PEER if is_lost_peer(error) else EXCEPTION


if __name__ == "__main__":
    main()
