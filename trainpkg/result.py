"""What train.json says of a finished run."""

from __future__ import annotations

import platform
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from trainpkg import __version__
from trainpkg.runtime import metrics

if TYPE_CHECKING:
    from trainpkg.train import Training


def summary(t: Training, nodes: list[tuple[int, str]], started: float) -> dict[str, Any]:
    """The content of train.json. `nodes`: (node rank, host) of each rank."""
    run, state, ctx = t.run, t.state, t.ctx
    lines = [record for record in metrics.read_records(t.records.path) if record.get("kind") == "train"]
    newest = max(((line["attempt"], line["generation"]) for line in lines), default=None)
    # others may have run on another number of ranks
    lines = [line for line in lines if (line["attempt"], line["generation"]) == newest]

    def median(key: str) -> float | None:
        values = [record[key] for record in lines if record.get(key) is not None]
        return statistics.median(values) if values else None

    hosts = dict(nodes)
    return {
        "run": run.run,
        "recipe": run.recipe,
        "fingerprint": run.fingerprint(),
        "data_digest": t.splits.digest,
        "status": "finished",
        "attempt": ctx.attempt,
        "generation": ctx.generation,
        "world_size": ctx.world_size,
        "num_nodes": len(hosts),
        "gpus_per_node": [sum(node == index for node, _ in nodes) for index in sorted(hosts)],
        "strategy": t.strategy.name,
        "device": ctx.device.type,
        "device_name": torch.cuda.get_device_name(ctx.device) if ctx.device.type == "cuda" else None,
        "backend": ctx.backend,
        "steps": state.step,
        "samples": state.samples,
        "tokens": state.tokens or None,
        "time_s": state.time_s,
        "train_time_s": state.train_time_s,
        "num_parameters": t.num_parameters,
        "final": {"train_loss": state.last_loss, **state.last_eval.get("metrics", {})},
        "best": state.best,
        "samples_per_second": median("samples_per_second"),
        "tokens_per_second": median("tokens_per_second"),
        "memory_mb": max((record["memory_mb"] for record in lines), default=None),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "trainpkg": __version__,
        "hosts": [hosts[index] for index in sorted(hosts)],
        "started": started,
        "ended": time.time(),
    }
