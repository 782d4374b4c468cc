"""The trained weights for others: model/model.safetensors and model/config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from trainpkg import __version__
from trainpkg.config import Run
from trainpkg.runtime import manifest, tensors
from trainpkg.runtime.distributed import RankContext
from trainpkg.runtime.parallel import Single


def write_model(ctx: RankContext, run: Run, strategy: Single, folder: Path, step: int) -> None:
    """Whole weights from any strategy, gathered to rank 0, which writes `folder`. Collective."""
    strategy.broadcast_buffers()
    weights = tensors.full_weights(strategy.module)
    if not ctx.is_main:
        return
    folder.mkdir(parents=True, exist_ok=True)
    waiting = folder / ".model.safetensors.tmp"
    save_file(weights, waiting, metadata={"format": "pt", "run": run.run, "step": str(step)})
    waiting.replace(folder / "model.safetensors")
    facts: dict[str, Any] = {
        "model": run.model.model_dump(mode="json"),
        "data": run.data.model_dump(mode="json"),
        "task": run.task,
        "run": run.run,
        "fingerprint": run.fingerprint(),
        "step": step,
        "num_parameters": sum(weight.numel() for weight in weights.values()),
        "trainpkg": __version__,
    }
    manifest.replace_synced(folder / "config.json", json.dumps(facts, indent=1) + "\n")
