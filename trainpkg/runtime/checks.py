"""Facts about the ranks' surroundings, proven by all ranks together: places, software, network, shared directory.

Each check ends with the same outcome on all ranks, since it is made from what all of them gathered. Which checks make a
smoke test, and the ones that train, belong to `smoke`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainpkg import __version__
from trainpkg.runtime import manifest
from trainpkg.runtime.distributed import RankContext, gather_objects, gather_rows

READ_TIMEOUT_S = 15.0  # a network file system shows a new file late where a lookup has failed before


@dataclass(frozen=True)
class Outcome:
    """`problem` None: the check holds. `text` for the table, `facts` for the JSON."""

    problem: str | None
    text: str
    facts: dict[str, Any]


def places(ctx: RankContext, launch_dir: Path) -> Outcome:
    """Ranks, offsets and devices against the launch plan; no two ranks of a node share a GPU."""
    own = (ctx.rank, ctx.node_rank, ctx.local_rank, ctx.local_world_size, ctx.host, str(ctx.device), _device_id(ctx))
    seen = gather_objects(ctx, own)
    path = launch_dir / str(ctx.generation) / "plan.json"
    plan = json.loads(path.read_text()) if path.exists() else None
    wanted = [
        (node["rank_offset"] + i, node["index"], i, node["num_ranks"], node["host"])
        for node in (plan["nodes"] if plan else ())
        for i in range(node["num_ranks"])
    ]
    problems = [
        f"rank {is_[0]} is local rank {is_[2]} of {is_[3]} on node {is_[1]} ({is_[4]}), planned was rank {to_be[0]}, "
        f"local rank {to_be[2]} of {to_be[3]} on node {to_be[1]} ({to_be[4]})"
        for is_, to_be in zip(seen, wanted, strict=False)
        if is_[:5] != to_be
    ]
    if plan and len(wanted) != ctx.world_size:
        problems.append(f"{path} plans {len(wanted)} ranks, {ctx.world_size} are here")
    shared = [device for device, count in Counter(row[6] for row in seen if row[6]).items() if count > 1]
    problems += [f"several ranks share the device {device}" for device in shared]
    hosts = Counter(row[4] for row in seen)
    text = ", ".join(f"{host}: {count}" for host, count in hosts.items()) + f" ranks on {ctx.device.type}"
    listed = [dict(zip(("rank", "node_rank", "local_rank", "local_world_size", "host", "device"), row[:6], strict=True))
              for row in seen]  # fmt: skip
    return Outcome("; ".join(problems) or None, text, {"ranks": listed})


def software(ctx: RankContext) -> Outcome:
    """Versions and this package's source, equal on all nodes."""
    facts = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "trainpkg": __version__,
        "code": code_hash(),
        "cuda": str(torch.version.cuda),
        "nccl": _nccl_version() if ctx.backend == "nccl" else None,
    }
    seen = gather_objects(ctx, (ctx.host, facts))
    problems = [
        f"{key} is {seen[0][1][key]} on {seen[0][0]} and {value} on {host}"
        for host, theirs in dict(seen).items()
        for key, value in theirs.items()
        if value != seen[0][1][key]
    ]
    text = f"python {facts['python']}, torch {facts['torch']}, trainpkg {__version__} ({facts['code']})"
    return Outcome("; ".join(problems) or None, text, {"versions": facts})


def reduction(ctx: RankContext) -> Outcome:
    """All-reduces of known values, small and large; every element on every rank."""
    wrong = 0
    for size in (1, 1_000, 1_000_003):
        values = known_values(size, ctx.rank, ctx.device)
        dist.all_reduce(values)
        wrong += int((values != known_sums(size, ctx.world_size, ctx.device)).sum().item())
    counts = [int(row[0]) for row in gather_rows(ctx, [wrong])]
    bad = {rank: count for rank, count in enumerate(counts) if count}
    problem = f"all-reduce gave wrong values: elements per rank {bad}" if bad else None
    return Outcome(problem, "sums of 1, 1,000 and 1,000,003 values are right on all ranks", {})


def known_values(size: int, rank: int, device: torch.device) -> Tensor:
    """What a rank sends, fp32 [size]: small whole numbers, so that every partial sum in any order is exact.

    The largest sum stays below 2^24 up to 32,768 ranks.
    """
    return (torch.arange(size, device=device) % 32 * (rank % 32 + 1)).float()


def known_sums(size: int, world_size: int, device: torch.device) -> Tensor:
    """What all ranks then have, fp32 [size]."""
    weight = sum(rank % 32 + 1 for rank in range(world_size))
    return (torch.arange(size, device=device) % 32 * weight).float()


def network(ctx: RankContext, megabytes: float) -> Outcome:
    """Latency of the smallest all-reduce, and rate of one of `megabytes`."""
    latency_s = _all_reduce_s(ctx, torch.ones(1, device=ctx.device), 20)
    message = torch.ones(max(int(megabytes * 250_000), 1), device=ctx.device)
    message_s = _all_reduce_s(ctx, message, 5)
    size = message.numel() * 4 / 1e6
    rate = size / message_s * 2 * (ctx.world_size - 1) / ctx.world_size  # what crosses each rank's link in a ring
    text = f"all-reduce: {latency_s * 1e6:,.0f} us, {rate:,.0f} MB/s per rank with {size:g} MB"
    facts = {"latency_us": latency_s * 1e6, "all_reduce_mb": size, "all_reduce_s": message_s, "bus_mb_per_s": rate}
    return Outcome(None, text, facts)


def shared_directory(ctx: RankContext, launch_dir: Path) -> Outcome:
    """Each node's first rank writes a file of random content; every rank reads all of them."""
    folder = launch_dir / f"shared-{ctx.generation}"
    written, problem = None, None
    if ctx.local_rank == 0:
        content = os.urandom(65536).hex()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            manifest.write_synced(folder / f"node-{ctx.node_rank}", content)
            manifest.sync_directory(folder)
            written = (ctx.node_rank, ctx.host, hashlib.sha256(content.encode()).hexdigest())
        except OSError as error:
            problem = f"{ctx.host} cannot write in {folder}: {error.strerror}"
    answers = gather_objects(ctx, (written, problem))
    problems = [problem for _, problem in answers if problem]
    files = [file for file, _ in answers if file]
    if not problems:
        own = [_read_problem(ctx, folder / f"node-{node}", host, digest) for node, host, digest in files]
        problems = [text for texts in gather_objects(ctx, own) for text in texts if text]
    if ctx.is_main:
        shutil.rmtree(folder, ignore_errors=True)
    hint = "; the results directory must lie on a file system that all nodes share" if problems else ""
    text = f"{len(files)} files written, each read by {ctx.world_size} ranks"
    return Outcome("; ".join(problems) + hint or None, text, {})


def code_hash() -> str:
    """16 hex digits over the source files of this package."""
    digest, root = hashlib.sha256(), Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _device_id(ctx: RankContext) -> str | None:
    """What tells a GPU from all others of all nodes; None on a CPU."""
    if ctx.device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(ctx.device), "uuid", ctx.device.index)
    return f"{uuid} on {ctx.host}"


def _all_reduce_s(ctx: RankContext, message: Tensor, repeats: int) -> float:
    """Median seconds of one all-reduce, of the slowest rank."""
    times = []
    for _ in range(repeats + 2):
        message.fill_(1.0)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(message)
        if ctx.device.type == "cuda":
            torch.cuda.synchronize(ctx.device)
        times.append(time.perf_counter() - began)
    return max(row[0] for row in gather_rows(ctx, [statistics.median(times[2:])]))


def _read_problem(ctx: RankContext, path: Path, host: str, digest: str) -> str | None:
    """None once the file shows the content written; otherwise a sentence, after READ_TIMEOUT_S."""
    end = time.monotonic() + READ_TIMEOUT_S
    while True:
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            reason = "another content"
        except OSError as error:
            found, reason = "", error.strerror or str(error)
        if found == digest:
            return None
        if time.monotonic() > end:
            return f"rank {ctx.rank} on {ctx.host} does not see what {host} wrote to {path} ({reason})"
        time.sleep(0.2)


def _nccl_version() -> str:
    version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
