"""A user's own script, as any script for torchrun is: it trains a small model with DDP, and knows no trainpkg.

`own_script.py OUT STEPS [ANYTHING...]`: rank 0 writes the weights' hash. TEST_SCRIPT = kind:rank:step: a rank fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    bad = os.environ.get("TEST_SCRIPT", "").split(":")
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        if bad[1:] == [str(rank), str(step)]:
            if bad[0] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(int(bad[0]))
        generator = torch.Generator().manual_seed(1000 * step + rank)
        data = torch.randn(4, 8, generator=generator)
        loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank} of {world}: {sys.argv[3:]}")
    if rank == 0:
        text = b"".join(tensor.detach().numpy().tobytes() for tensor in model.parameters())
        out.write_text(json.dumps({"hash": hashlib.sha256(text).hexdigest(), "environment": dict(os.environ)}))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # the interpreter's end with threads of gloo's alive aborts now and then


if __name__ == "__main__":
    main()
