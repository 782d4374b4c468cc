"""Many small trainings in one start of ranks, one after the other: what a training costs then is its steps.

A stage for `start`: instead of one run, the ranks train the cells of `cells.json` in the run directory.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.distributed.start import config, run_ranks
from trainpkg import data, train
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.runtime import rank
from trainpkg.runtime.checkpoints import tensors
from trainpkg.runtime.distributed import RankContext

Cell = dict[str, Any]
STOP_AT = 5  # steps that an interrupted cell has done when it is stopped


def run_cells(cells: Mapping[str, Cell], folder: Path, num_ranks: int, nodes: list[int] | None = None) -> None:
    """Train all cells on `num_ranks` ranks; a cell is a base (`digits`, `gpt`) and overrides of its config.

    Each leaves weights, averages, records and, where it was refused, the sentence in `folder`/name. A cell with
    `interrupted` is stopped once and put together anew from its checkpoint.
    """
    (folder / "cells.json").parent.mkdir(parents=True, exist_ok=True)
    (folder / "cells.json").write_text(json.dumps(cells))
    run_ranks(config("digits"), folder, num_ranks, before=be_many, nodes=nodes, timeout_s=900)


def be_many() -> None:
    rank.STAGES["train"] = __name__
    plain = torch.compile

    def compiled(function: Any) -> Any:
        """All of torch.compile but the C++ compiler, which takes half a minute per cell."""
        return plain(function, backend="aot_eager")

    torch.compile = compiled  # type: ignore[assignment]
    build, known = data.build, dict[str, data.Splits]()

    def build_once(run: Run, device: torch.device) -> data.Splits:
        """Cells of one data set read it once."""
        key = repr((run.data, run.model.name))
        if key not in known:
            known[key] = build(run, device)
        return known[key]

    data.build = build_once


def main(ctx: RankContext, run: Run, spec: Mapping[str, Any]) -> str:
    """As a stage's."""
    folder = Path(spec["run_dir"])
    for name, cell in json.loads((folder / "cells.json").read_text()).items():
        options = dict(cell)
        base, interrupted = options.pop("base", "gpt"), options.pop("interrupted", False)
        (folder / name).mkdir(exist_ok=True)
        print(f"cell {name}", flush=True)
        try:
            one = config(base, **options)
            if interrupted:
                live(ctx, one, folder / name, STOP_AT)
            live(ctx, one, folder / name)
        except (UserError, ValueError) as error:
            if ctx.is_main:
                (folder / name / "refused").write_text(str(error))
    return "finished"


def live(ctx: RankContext, run: Run, folder: Path, steps: int | None = None) -> None:
    """One life of a training: to its end, or stopped after `steps` steps. Files that no test reads are not written."""
    ctx.stop.reason = None
    training = train.prepare(ctx, run, folder)
    training.checkpoints.resume()
    if steps is not None:
        state, due, poll = training.state, training.cadence.due, ctx.stop.poll
        training.cadence.due = lambda step: due(step) or step >= steps  # type: ignore[method-assign]
        ctx.stop.poll = lambda: poll() or state.step >= steps  # type: ignore[method-assign]
    else:
        training.checkpoints.maybe_save = lambda step: None  # type: ignore[method-assign]
    verdict = train.loop(training)
    if steps is not None:
        del ctx.stop.poll
    assert verdict == ("finished" if steps is None else "again"), verdict
    if steps is None:
        keep(ctx, training, folder)
    training.records.close()
    del training
    gc.collect()


def keep(ctx: RankContext, training: train.Training, folder: Path) -> None:
    """Whole weights and averages, by rank 0."""

    def write(name: str) -> None:
        whole = tensors.full_weights(training.strategy.module)  # may be the parameters themselves
        if ctx.is_main:
            save_file(whole, folder / name)

    write("weights.safetensors")
    with training.update.average.swapped():
        write("averages.safetensors")


def outcome(folder: Path, name: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], str | None]:
    """(weights, averages, why it was refused) of a cell."""
    refused = folder / name / "refused"
    if refused.exists():
        return {}, {}, refused.read_text()
    place = folder / name
    return load_file(place / "weights.safetensors"), load_file(place / "averages.safetensors"), None


if __name__ == "__main__":
    sys.exit("a module of tests")
