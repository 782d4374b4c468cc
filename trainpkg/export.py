"""The trained weights for others: model/model.safetensors, ema.safetensors where they are averaged, and config.json."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from trainpkg import __version__
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.runtime import manifest
from trainpkg.runtime.checkpoints import tensors
from trainpkg.runtime.distributed import RankContext, broadcast_object, patient
from trainpkg.runtime.parallel import Single
from trainpkg.runtime.update import NoAverage


def write_model(ctx: RankContext, run: Run, strategy: Single, average: NoAverage, folder: Path, step: int) -> None:
    """Whole weights from any strategy, gathered to rank 0, which writes `folder`. Collective.

    UserError on all ranks where the file system refuses; what was there before stays.
    """
    with patient(ctx, "saving", run.checkpoint.timeout_s):
        strategy.broadcast_buffers()
        weights = tensors.full_weights(strategy.module)
        files = {"model": weights}
        if averages := tensors.whole(average.state()):
            files["ema"] = {**weights, **averages}  # a model of its own: buffers are not averaged
        problem = _write(run, files, folder, step) if ctx.is_main else None
        problem = broadcast_object(ctx, problem)
    if problem is not None:
        raise UserError(
            f"the weights cannot be written to {folder}: {problem}; the checkpoints hold them: free space or mend the "
            "permissions, then start again"
        )


def _write(run: Run, files: dict[str, dict[str, Tensor]], folder: Path, step: int) -> str | None:
    """All files, each whole or as before; what went wrong, None if nothing did."""
    facts: dict[str, Any] = {
        "model": run.model.model_dump(mode="json"),
        "data": run.data.model_dump(mode="json"),
        "task": run.task,
        "run": run.run,
        "fingerprint": run.fingerprint(),
        "step": step,
        "num_parameters": sum(weight.numel() for weight in files["model"].values()),
        "trainpkg": __version__,
    }
    waiting = folder / ".weights.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, weights in files.items():
            save_file(weights, waiting, metadata={"format": "pt", "run": run.run, "step": str(step)})
            manifest.publish_synced(waiting, folder / f"{name}.safetensors")
        manifest.replace_synced(folder / "config.json", json.dumps(facts, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            waiting.unlink(missing_ok=True)
        return str(error)
    return None
