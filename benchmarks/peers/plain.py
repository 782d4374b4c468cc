"""A loop as PyTorch's own tutorials have it: DistributedDataParallel, or fully_shard, with a DataLoader.

`plain.py CASE [ddp|fsdp] [STEPS] [--tuned]` under torchrun; by itself, through
torch.multiprocessing.spawn, with `--spawn RANKS [--nodes N --node K] --port P`.
After intermediate/ddp_tutorial (DDP with default settings, AdamW with default settings), beginner/basics (the loss is
printed every so many steps) and intermediate/FSDP_tutorial (fully_shard of each block, then of the whole).
`--tuned`: with what PyTorch's tuning guide adds to them, fused AdamW and gradients that live in DDP's buckets.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.workload import OPTIM, Clock, Work


def train(case: str, strategy: str, steps: int | None, tuned: bool = False) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(1))
    work = Work(case, world_size, steps)
    clock = Clock(work, rank)
    model = work.model()
    if strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard  # takes a second, which DDP has no use for

        for block in getattr(model, "blocks", ()):
            fully_shard(block)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model, gradient_as_bucket_view=tuned)
    optimizer = torch.optim.AdamW(model.parameters(), fused=tuned, **OPTIM)
    loader = DataLoader(work.dataset(), batch_size=work.batch, sampler=work.sampler(rank))
    for batch in loader:
        loss = work.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.step()
        if clock.tells and rank == 0:
            print(f"loss: {loss.item():>7f}")
    clock.finish(model)
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's end with gloo's threads alive aborts now and then


def spawned(local_rank: int, options: argparse.Namespace) -> None:
    os.environ |= {
        "RANK": str(options.node * options.spawn + local_rank),
        "WORLD_SIZE": str(options.nodes * options.spawn),
        "LOCAL_RANK": str(local_rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(options.port),
    }
    train(options.case, options.strategy, options.steps)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("strategy", nargs="?", default="ddp")
    parser.add_argument("steps", nargs="?", type=int)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--port", type=int, default=29500)
    options = parser.parse_args()
    if options.spawn:
        mp.spawn(spawned, (options,), nprocs=options.spawn)
    else:
        train(options.case, options.strategy, options.steps, options.tuned)


if __name__ == "__main__":
    main()
