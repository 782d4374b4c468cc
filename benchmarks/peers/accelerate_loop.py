"""The same training with Hugging Face's accelerate, as its quick tour has it, with fused AdamW.

`accelerate_loop.py CASE [STEPS]` under `accelerate launch` or torchrun. Its DDP keyword `gradient_as_bucket_view` is
taken, as PyTorch's tuning guide advises. No FSDP: with the plugin accelerate runs plain DDP on a CPU without a word.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch.utils.data import DataLoader

from benchmarks.workload import OPTIM, Clock, Work


def main() -> None:
    case, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)])
    if dist.is_initialized():
        dist.all_reduce(torch.ones(1))
    work = Work(case, accelerator.num_processes, steps)
    clock = Clock(work, accelerator.process_index)
    model = work.model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **OPTIM)
    loader = DataLoader(work.dataset(), batch_size=work.batch, sampler=work.sampler(None))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        loss = work.loss(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        clock.step()
        if clock.tells:
            accelerator.print(f"loss: {loss.item():>7f}")
    clock.finish(model)
    accelerator.wait_for_everyone()
    os._exit(0)


if __name__ == "__main__":
    main()
