"""A small training as tutorials for torchrun show it: what stock tools are measured with. It knows nothing of trainpkg.

`tiny_ddp.py [STEPS]` trains until it is ended, or so many steps; 20 steps a second at most, with torch's own timeouts.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    last = int(sys.argv[1]) if len(sys.argv) > 1 else None
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    print(f"rank {rank} is process {os.getpid()}" + (", all ranks joined" if rank == 0 else ""), flush=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    while step != last:
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0 and step == 1:
            print("step 1 of many", flush=True)
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's end with gloo's threads alive aborts now and then


if __name__ == "__main__":
    main()
