"""The rank's place among all ranks: context from the environment, process group, collective helpers.

Who is which rank is decided by the launcher; here the environment is only read and checked. How a model is spread over
the ranks belongs to `parallel`.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.last_words import lost_peer
from trainpkg.runtime import devices
from trainpkg.runtime.report import Reporter
from trainpkg.runtime.signals import Cadence, StopRequest

END_MARGIN_S = 10.0  # the launcher's word on who is missing comes first


@dataclass(frozen=True)
class RankContext:
    """Facts of one rank. `rank` counts over all nodes, `local_rank` within the node."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int
    host: str
    device: torch.device
    backend: str
    attempt: int = 1
    generation: int = 0
    address: str = ""  # of this rank's node, as gloo tells it to the others
    listen_fd: int | None = None
    agent_store: bool = False  # torchrun's agent serves the store
    shares_gpus: bool = False  # launch.oversubscribe
    init_timeout_s: float = 60.0
    collective_timeout_s: float = 600.0
    end_timeout_s: float = 60.0
    reporter: Reporter = field(default_factory=lambda: Reporter(0, None))
    stop: StopRequest = field(default_factory=StopRequest)

    @property
    def is_main(self) -> bool:
        """Global rank 0, the only one that writes config, metrics and results."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """A line in this rank's log."""
        print(text, flush=True)

    def warn(self, text: str) -> None:
        print(f"warning: {text}", file=sys.stderr, flush=True)


def context_from_environment(
    environ: Mapping[str, str], run: Run, spec: Mapping[str, Any], reporter: Reporter, stop: StopRequest
) -> RankContext:
    """The launcher's variables, read and checked; a missing or contradicting one is a UserError that names it."""

    def number(name: str, default: int | None = None) -> int:
        text = environ.get(name)
        if text is None and default is not None:
            return default
        if text is None or not text.strip().lstrip("-").isdigit():
            raise UserError(f"{name} = {text!r} in the environment of a rank is no number; start ranks with `launch`")
        return int(text)

    rank, world_size = number("RANK"), number("WORLD_SIZE")
    local_rank, local_world_size = number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE")
    if not 0 <= rank < world_size or not 0 <= local_rank < local_world_size:
        raise UserError(
            f"RANK = {rank} of WORLD_SIZE = {world_size}, LOCAL_RANK = {local_rank} of LOCAL_WORLD_SIZE = "
            f"{local_world_size}: ranks count from 0 and stay below the size"
        )
    kind = environ.get("TRAINPKG_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    device = devices.pick(kind, local_rank, local_world_size)
    backend = environ.get("TRAINPKG_DIST_BACKEND") or ("nccl" if kind == "cuda" else "gloo")
    return RankContext(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node_rank=number("NODE_RANK", 0),
        num_nodes=number("NUM_NODES", 1),
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=number("MASTER_PORT"),
        host=environ.get("TRAINPKG_HOST", "localhost"),
        device=device,
        backend=backend,
        attempt=int(spec.get("attempt") or 1),
        generation=number("TRAINPKG_GENERATION", 0),
        address=environ.get("TRAINPKG_ADDRESS", ""),
        listen_fd=number("TRAINPKG_LISTEN_FD") if rank == 0 and environ.get("TRAINPKG_LISTEN_FD") else None,
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        shares_gpus=run.launch.oversubscribe,
        init_timeout_s=run.launch.init_timeout_s,
        collective_timeout_s=run.launch.collective_timeout_s,
        end_timeout_s=run.launch.end_timeout_s,
        reporter=reporter,
        stop=stop,
    )


def connect(ctx: RankContext, store: Store | None = None) -> RankContext:
    """Join all ranks and prove it: process group, then an all-reduce of known values, all within `init_timeout_s`.

    `store` is one where the ranks have met already. Returns the context with its device settled. Logs the line by which
    ranks are found in logs, reports `joined`. A wrong sum raises RuntimeError.
    """
    started = time.monotonic()
    at = f", others reach it at {ctx.address}" if ctx.address else ""
    ctx.say(
        f"distributed init (rank {ctx.rank} of {ctx.world_size}): tcp://{ctx.master_addr}:{ctx.master_port} "
        f"{ctx.backend} {ctx.host} {ctx.device}{at}"
    )
    timeout = timedelta(seconds=ctx.init_timeout_s)
    store = store or TCPStore(
        ctx.master_addr,
        ctx.master_port,
        ctx.world_size,
        is_master=ctx.is_main and not ctx.agent_store,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=ctx.listen_fd,
    )
    # A prefix per generation: ranks of an earlier one never read or write the keys of this one.
    store = PrefixStore(f"attempt{ctx.attempt}.generation{ctx.generation}", store)
    ctx = devices.settle(ctx, store)
    if ctx.device.type == "cuda":
        torch.cuda.set_device(ctx.device)
    dist.init_process_group(
        ctx.backend,
        store=store,
        rank=ctx.rank,
        world_size=ctx.world_size,
        timeout=timeout,
        device_id=ctx.device if ctx.device.type == "cuda" else None,
    )
    values = torch.tensor([ctx.rank + 1.0, 1.0], dtype=torch.float64, device=ctx.device)
    work = dist.all_reduce(values, async_op=True)
    assert work is not None
    work.wait(timeout)
    expected = [ctx.world_size * (ctx.world_size + 1) / 2, float(ctx.world_size)]
    if values.tolist() != expected:
        raise RuntimeError(f"all-reduce over {ctx.world_size} ranks gave {values.tolist()}, not {expected}")
    limit_collectives(ctx.collective_timeout_s)
    ctx.reporter.joined(time.monotonic() - started, str(ctx.device))
    return ctx


def limit_collectives(seconds: float) -> None:
    """For how long any later collective operation of all ranks may wait."""
    for group in list(_world.pg_map):  # those of a mesh as well
        _set_pg_timeout(timedelta(seconds=seconds), group)


@contextlib.contextmanager
def patient(ctx: RankContext, phase: str, timeout_s: float) -> Iterator[None]:
    """Work outside steps in which ranks may wait for a slow one longer than in a step, `timeout_s`. Collective."""
    with ctx.reporter.phase(phase):
        limit_collectives(max(timeout_s, ctx.collective_timeout_s))
        try:
            yield
        finally:
            limit_collectives(ctx.collective_timeout_s)


def leave(ctx: RankContext) -> None:
    """Wait for all ranks at the end of the run, and not for long: the launcher names those that do not come."""
    ctx.reporter.busy("end")
    limit_collectives(ctx.end_timeout_s + END_MARGIN_S)
    dist.barrier()


class StopPoll:
    """Asked once per pass of a long collective phase: whether any rank wants to stop. Collective, and rarely a cost."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx, self._cadence = ctx, Cadence()
        self._count, self._since, self._met = 0, time.monotonic(), 0

    def __call__(self) -> bool:
        self._ctx.reporter.alive()
        self._count += 1
        if not self._cadence.due(self._count):
            return False
        now = time.monotonic()
        rows = gather_rows(self._ctx, [float(self._ctx.stop.poll()), (now - self._since) / (self._count - self._met)])
        self._since, self._met = now, self._count
        stops, seconds = zip(*rows, strict=True)
        self._cadence.met(self._count, max(seconds))
        return any(stops)


def gather_rows(ctx: RankContext, values: Sequence[float]) -> list[list[float]]:
    """Each rank's row of `values` (equal lengths), in rank order, on all ranks; one collective, float64."""
    row = torch.tensor(list(values), dtype=torch.float64, device=ctx.device)
    rows = torch.empty(ctx.world_size * len(values), dtype=torch.float64, device=ctx.device)
    dist.all_gather_single(rows, row)
    listed: list[list[float]] = rows.view(ctx.world_size, len(values)).tolist()
    return listed


def all_sum(ctx: RankContext, values: torch.Tensor) -> torch.Tensor:
    """Sum over all ranks in float64; same shape, equal on all ranks."""
    total = values.detach().to(device=ctx.device, dtype=torch.float64).contiguous()
    total = total.clone() if total is values else total
    dist.all_reduce(total)
    return total


def broadcast_object(ctx: RankContext, value: Any) -> Any:
    """Rank 0's value, on all ranks."""
    box = [value]
    dist.broadcast_object_list(box, src=0, device=ctx.device)
    return box[0]


def gather_objects(ctx: RankContext, value: Any) -> list[Any]:
    """Every rank's value, in rank order, on all ranks."""
    values: list[Any] = [None] * ctx.world_size
    dist.all_gather_object(values, value)
    return values


def require_equal(ctx: RankContext, what: str, value: Any) -> None:
    """UserError on all ranks, naming a rank that differs from rank 0 and both values."""
    values = gather_objects(ctx, (ctx.host, value))
    for rank, (host, other) in enumerate(values):
        if other != values[0][1]:
            raise UserError(
                f"{what} differs between ranks: {values[0][1]!r} on rank 0 ({values[0][0]}), {other!r} on rank {rank} "
                f"({host}); all nodes need the same software and data"
            )


def is_lost_peer(error: BaseException) -> bool:
    """Whether the error says that another rank is gone or silent: then this rank is a victim, not the cause."""
    if isinstance(error, (dist.DistStoreError, dist.DistNetworkError)):
        return True
    failures = getattr(error, "failures", None)  # torch.distributed.checkpoint wraps what each rank met
    if isinstance(failures, dict):
        inner = [failure[0] for failure in failures.values() if isinstance(failure, tuple)]
        return bool(inner) and all(is_lost_peer(one) for one in inner if isinstance(one, BaseException))
    return isinstance(error, RuntimeError) and lost_peer(str(error))


def is_collective(error: BaseException) -> bool:
    """Whether the exception came out of a collective operation: it may be another rank's doing."""
    if isinstance(error, dist.DistError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    inner = frames[-1] if frames else None
    return inner is not None and ("torch/distributed/" in inner.filename or inner.name == "_engine_run_backward")
