"""Memory per rank and time per step: strategies, activation checkpointing, shared sequences; beside theory.

Memory is what the process holds of its own (anonymous pages) beyond what it held before the model was built, with
torch, its compiler and a first small step in memory. State: after a step, at rest. In theory, in fp32 with AdamW, that
is 12 bytes per parameter (weights and two moments), over the ranks where they are sharded, and under DDP 4 more, since
its buckets keep the gradients. Peak: the most within a step. Saved: the activations that autograd keeps for backward,
counted by its own hooks (under fsdp with the gathered weights among them). Large blocks of memory go back to the system
at once (MALLOC_MMAP_THRESHOLD_).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Part, Row, Scale, interleaved
from benchmarks.inside import in_ranks

GPT = {"name": "gpt", "dim": 512, "depth": 9, "heads": 8, "context": 256}
TINY = {"name": "gpt", "dim": 256, "depth": 3, "heads": 8, "context": 64}
SAMPLES = 4  # of a step, over all ranks
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
Variant = tuple[int, str, bool, int]  # ranks, strategy, activation checkpointing, ranks that share a sequence
VARIANTS: dict[str, Variant] = {
    "1 rank": (1, "single", False, 1),
    "1 rank, activation checkpointing": (1, "single", True, 1),
    "2 ranks, ddp": (2, "ddp", False, 1),
    "2 ranks, ddp, activation checkpointing": (2, "ddp", True, 1),
    "2 ranks, fsdp": (2, "fsdp", False, 1),
    "2 ranks, fsdp, activation checkpointing": (2, "fsdp", True, 1),
    "4 ranks, fsdp": (4, "fsdp", False, 1),
    "4 ranks, ddp": (4, "ddp", False, 1),
    "4 ranks, ddp, sequences shared by 2": (4, "ddp", False, 2),
    "4 ranks, ddp, sequences shared by 4": (4, "ddp", False, 4),
}
FULL_ONLY = (
    "1 rank, activation checkpointing",
    "2 ranks, fsdp, activation checkpointing",
    "4 ranks, ddp, sequences shared by 2",
)


def status_mb(name: str) -> float:
    """A line of this process's status, in 10^6 bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError(name)


def first_small_step() -> None:
    """What torch allocates once, whatever is trained."""
    import torch
    import torch._dynamo

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()


def look(ctx: Any, run: Any, folder: Path, num_steps: int) -> list[Row]:
    """On every rank: a few steps; memory at rest and at most."""
    from trainpkg import train

    first_small_step()
    gc.collect()
    before = status_mb("RssAnon")
    t = train.prepare(ctx, run, folder)
    step(t)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the most that was resident counts from here
    began = time.perf_counter()
    for _ in range(num_steps):
        step(t)
    took = time.perf_counter() - began
    above = status_mb("VmHWM") - status_mb("VmRSS")
    gc.collect()
    state = status_mb("RssAnon") - before
    num = t.num_parameters
    theory = (16 if t.strategy.name == "ddp" else 12) * num / 1e6
    theory /= ctx.world_size if t.strategy.name == "fsdp" else 1
    saved = saved_mb(t)
    return [{
        "parameters_m": num / 1e6, "state_mb": state, "theory_mb": theory, "state_share": state / theory,
        "peak_mb": state + above, "saved_mb": saved, "step_s": took / num_steps,
    }]  # fmt: skip


def step(t: Any) -> None:
    """As the trainer's loop does one."""
    t.update.begin(0)
    for last, _, batch in t.feed.step(t.state.samples):
        with t.strategy.accumulating(last):
            t.task.loss(t.strategy.model, batch).backward()
    t.update.step(t.state.step + 1, t.loss.total)
    t.state.advance(t.run.train.global_batch, None)


def saved_mb(t: Any) -> float:
    """Activations that a forward pass keeps, each storage once."""
    import torch

    weights = {p.untyped_storage().data_ptr() for p in t.strategy.module.parameters() if not hasattr(p, "full_tensor")}
    sizes: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and not isinstance(tensor, torch.nn.Parameter):
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = t.task.loss(t.strategy.model, t.feed.first())
    found = sum(sizes.values()) / 1e6
    loss.backward()  # or FSDP would wait for it
    return found


def measure(scale: Scale) -> Iterator[Row]:
    chosen = {name: it for name, it in VARIANTS.items() if scale.full or scale.tiny or name not in FULL_ONLY}

    def once(ranks: int, strategy: str, recomputes: bool, shared: int) -> Row:
        tree = {
            "task": "language", "strategy": strategy, "model": TINY if scale.tiny else GPT,
            "data": {"name": "python_text", "max_bytes": 100_000}, "sequence_parallel": shared,
            "train": {"max_steps": 10**6, "global_batch": SAMPLES, "activation_checkpointing": recomputes},
        }  # fmt: skip
        return in_ranks(look, ranks, tree, 1, **ALLOCATOR)[0]

    ways = {name: lambda variant=variant: once(*variant) for name, variant in chosen.items()}
    repetitions = scale.repetitions if scale.full else 1  # memory is the same each time
    yield from interleaved("gpt", ways, repetitions, warm_up=False)


PART = Part(
    "memory",
    "Memory per rank and step time",
    "state within 10 % of theory",
    "1 rank",
    (
        Figure("parameters_m", "parameters", "10^6", None),
        Figure("state_mb", "state", "MB", None),
        Figure("theory_mb", "in theory", "MB", None),
        Figure("state_share", "state / theory", "", None),
        Figure("saved_mb", "saved for backward", "MB", None),
        Figure("peak_mb", "peak", "MB", None),
        Figure("step_s", "step", "s", None),
    ),
    measure,
)
