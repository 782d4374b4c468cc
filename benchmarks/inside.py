"""Measure inside the ranks of one start: a training of this package, put together and handed to a function."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.commands import Unsuccessful
from benchmarks.harness import Row
from trainpkg.launch import RankFailedError, spawn

Work = Callable[..., list[Row]]  # (context, run, folder, *arguments), on every rank; rank 0's rows are kept


def in_ranks(work: Work, num_ranks: int, tree: dict[str, Any], *arguments: Any, **environment: str) -> list[Row]:
    """Rows of rank 0. `work` is a function of a module; `tree` the keys of a run; one thread per rank."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place, set_to(OMP_NUM_THREADS="1", **environment):
        tree = {"run": "bench", "recipe": "bench", "launch": {"device": "cpu", "gpus_per_node": num_ranks}} | tree
        try:
            spawn(_live, (work, tree, place, arguments), nprocs=num_ranks)
        except RankFailedError as error:
            raise Unsuccessful(str(error).splitlines()[0]) from error
        rows: list[Row] = json.loads((Path(place) / "rows.json").read_text())
        return rows


def _live(local_rank: int, work: Work, tree: dict[str, Any], place: str, arguments: tuple[Any, ...]) -> None:
    import torch

    from trainpkg.config import Run
    from trainpkg.runtime.distributed import connect, context_from_environment, leave
    from trainpkg.runtime.report import Reporter
    from trainpkg.runtime.signals import StopRequest

    torch.set_num_threads(1)
    run = Run.model_validate(tree)
    spec: dict[str, Any] = {"run_dir": place, "attempt": 1}
    ctx = connect(context_from_environment(os.environ, run, spec, Reporter(local_rank, None), StopRequest()))
    rows = work(ctx, run, Path(place), *arguments)
    if ctx.is_main:
        (Path(place) / "rows.json").write_text(json.dumps(rows))
    leave(ctx)
    sys.stdout.flush()
    os._exit(0)


@contextmanager
def set_to(**variables: str) -> Iterator[None]:
    """The environment with these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
