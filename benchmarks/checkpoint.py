"""What a checkpoint costs training: ours in its way and beside it, beside torch.save by rank 0 and plain dcp.save.

A GPT of 28.7 million parameters (344 MB with AdamW's moments) is trained in one start of ranks: in turn some steps
without a save and with one of each kind. Stall: how long the call holds training up. Cost: how much longer the loop
takes than without a save. What is saved beside training ends within the loop. Ours is on the disk when it says so
(fsync, checksums, renamed when whole); torch.save and dcp.save leave it to the page cache, `torch.save, fsync` waits.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.commands import Unsuccessful
from benchmarks.harness import Figure, Part, Row, Scale, told
from benchmarks.inside import in_ranks
from benchmarks.memory import step

NUM_STEPS, SAVE_AFTER = 10, 1  # of each turn
MODEL = {"name": "gpt", "dim": 512, "depth": 9, "heads": 8, "context": 32}
TINY = {"name": "gpt", "dim": 128, "depth": 2, "heads": 8, "context": 32}


def ours(t: Any, beside: bool) -> Callable[[Path], Callable[[], None]]:
    def save(folder: Path) -> Callable[[], None]:
        t.checkpoints._begin(t.state.step, t.checkpoints._beside if beside else t.checkpoints._here)
        return t.checkpoints.settle  # type: ignore[no-any-return]

    return save


def by_rank_0(t: Any, syncs: bool) -> Callable[[Path], Callable[[], None]]:
    """As PyTorch's DDP tutorial saves: one rank writes, the others wait."""
    import os

    import torch
    import torch.distributed as dist

    def save(folder: Path) -> Callable[[], None]:
        if dist.get_rank() == 0:
            folder.mkdir()
            states = [optimizer.state_dict() for optimizer in t.update.optimizers]
            with (folder / "all.pt").open("wb") as file:
                torch.save({"model": t.strategy.module.state_dict(), "optimizers": states}, file)
                if syncs:
                    file.flush()
                    os.fsync(file.fileno())
        dist.barrier()
        return lambda: None

    return save


def by_dcp(t: Any, group: Any = None) -> Callable[[Path], Callable[[], None]]:
    """As PyTorch's recipe for distributed checkpoints has it; with a group: `async_save`."""
    import torch.distributed.checkpoint as dcp

    def save(folder: Path) -> Callable[[], None]:
        state = dict(zip(("model", "optimizer"), state_dicts(t), strict=True))
        if group is None:
            dcp.save(state, checkpoint_id=folder)
            return lambda: None
        answer: Any = dcp.async_save(state, checkpoint_id=folder, process_group=group)
        return lambda: answer.result()

    return save


def state_dicts(t: Any) -> Any:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    return get_state_dict(t.strategy.module, t.update.optimizers)


def turn(
    t: Any, save: Callable[[Path], Callable[[], None]] | None, folder: Path, num_steps: int
) -> tuple[float, float]:
    """(seconds of the loop, seconds of the call)."""
    import torch.distributed as dist

    dist.barrier()
    stall, finish = 0.0, lambda: None
    began = time.perf_counter()
    for number in range(num_steps):
        step(t)
        if number == SAVE_AFTER and save is not None:
            called = time.perf_counter()
            finish = save(folder)
            stall = time.perf_counter() - called
    dist.barrier()
    took = time.perf_counter() - began
    finish()
    return took, stall


def load_all(t: Any, folder: Path) -> dict[str, float]:
    """Seconds to read each kind into the training that is there."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    def ours_too() -> None:
        t.checkpoints.resume()

    def torch_load() -> None:
        found = torch.load(folder / "torch.save by rank 0/all.pt")
        t.strategy.module.load_state_dict(found["model"])
        for optimizer, state in zip(t.update.optimizers, found["optimizers"], strict=True):
            optimizer.load_state_dict(state)

    def dcp_load() -> None:
        state = dict(zip(("model", "optimizer"), state_dicts(t), strict=True))
        dcp.load(state, checkpoint_id=folder / "dcp.save")
        set_model_state_dict(t.strategy.module, state["model"])
        set_optimizer_state_dict(t.strategy.module, t.update.optimizers, state["optimizer"])

    seconds = {}
    for name, load in (("ours", ours_too), ("torch.save by rank 0", torch_load), ("dcp.save", dcp_load)):
        if name != "ours" and t.strategy.name == "fsdp" and "torch" in name:
            continue
        dist.barrier()
        began = time.perf_counter()
        load()
        dist.barrier()
        seconds[name] = time.perf_counter() - began
    return seconds


def look(ctx: Any, run: Any, folder: Path, num_steps: int, repetitions: int) -> list[Row]:
    """On every rank."""
    import torch.distributed as dist

    from trainpkg import train

    t = train.prepare(ctx, run, folder)
    ways: dict[str, Any] = {"no save": None, "ours": ours(t, False), "ours, beside training": ours(t, True)}
    if t.strategy.name == "ddp":
        ways |= {"torch.save by rank 0": by_rank_0(t, False), "torch.save, fsync": by_rank_0(t, True)}
    ways |= {"dcp.save": by_dcp(t), "dcp.async_save": by_dcp(t, dist.new_group(backend="gloo"))}
    rows: list[Row] = []
    for number in range(repetitions + 1):
        without = 0.0
        for way, save in ways.items():
            place = folder / way
            if ctx.is_main:
                shutil.rmtree(place, ignore_errors=True)
            took, stall = turn(t, save, place, num_steps)
            without = took if save is None else without
            row = {"way": way, "round": number, "loop_s": took}
            if save is not None:
                row |= {"stall_s": stall, "cost_s": took - without}
                where = place if place.exists() else folder / "checkpoints"
                size = sum(path.stat().st_size for path in where.rglob("*") if path.is_file()) if ctx.is_main else 0
                if way in ("ours", "torch.save by rank 0", "torch.save, fsync", "dcp.save"):
                    row["mb_per_s"] = size / 1e6 / stall
            if number:  # the first round makes memory for the copies
                rows.append(row)
                if ctx.is_main:
                    print(told(row), flush=True)
        if number:
            for way, seconds in load_all(t, folder).items():
                next(row for row in rows if (row["way"], row["round"]) == (way, number))["load_s"] = seconds
    return rows


def measure(scale: Scale) -> Iterator[Row]:
    for strategy in ("ddp",) if not scale.full else ("ddp", "fsdp"):
        for ranks in (2,) if not scale.full else (1, 2):
            tree = {
                "task": "language", "strategy": strategy, "model": TINY if scale.tiny else MODEL,
                "data": {"name": "python_text", "max_bytes": 100_000},
                "train": {"max_steps": 10**6, "global_batch": 2 * ranks},
                "checkpoint": {"every_steps": 10**9, "asynchronous": True, "keep_last": 1},
            }  # fmt: skip
            common = {"case": f"{strategy}, {ranks} ranks"}
            try:
                for row in in_ranks(look, ranks, tree, NUM_STEPS, scale.repetitions):
                    yield common | row
            except Unsuccessful as error:
                yield common | {"way": "ours", "round": 1, "failed": str(error)}


PART = Part(
    "checkpoint",
    "Checkpoints",
    "a save beside training stalls it for at most a tenth of one in its way",
    "ours",
    (
        Figure("stall_s", "stall", "s"),
        Figure("cost_s", "cost to the loop", "s", None),
        Figure("mb_per_s", "written", "MB/s", "more"),
        Figure("load_s", "load", "s"),
    ),
    measure,
)
