"""The same training with Lightning: its DDP, or ModelParallelStrategy (its `fsdp` refuses a CPU), all extras off.

`lightning_loop.py CASE [ddp|fsdp] [STEPS] --ranks R [--nodes N]`. Lightning starts the other ranks of a node itself,
its documented way on one machine; several nodes as on a plain cluster: one command each, with NODE_RANK, MASTER_ADDR
and MASTER_PORT. What its documentation on speed advises: no logger, progress bar, summary or checkpoint that nobody
asked for, `gradient_as_bucket_view`, fused AdamW, logs not in every step.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from benchmarks.workload import OPTIM, Clock, Work


class Module(lightning.LightningModule):
    def __init__(self, work: Work, shards: bool) -> None:
        super().__init__()
        self.work, self.shards = work, shards
        self.model: nn.Module = work.model()
        self.clock: Clock | None = None

    def setup(self, stage: str) -> None:
        if dist.is_initialized():
            dist.all_reduce(torch.ones(1))
        self.clock = Clock(self.work, self.global_rank)

    def configure_model(self) -> None:
        if self.shards:
            mesh = self.device_mesh["data_parallel"]
            for block in getattr(self.model, "blocks", ()):
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.work.loss(self.model, batch)

    def on_train_batch_end(self, *_: Any) -> None:
        assert self.clock is not None
        self.clock.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), fused=True, **OPTIM)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.work.dataset(), batch_size=self.work.batch, sampler=self.work.sampler(self.global_rank))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("strategy", nargs="?", default="ddp")
    parser.add_argument("steps", nargs="?", type=int)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1)
    options, _ = parser.parse_known_args()
    work, shards = Work(options.case, options.ranks * options.nodes, options.steps), options.strategy == "fsdp"
    # by its own choice, ranks of a node would be tensor-parallel and reduce no gradients
    sharded = ModelParallelStrategy(work.world_size, tensor_parallel_size=1, process_group_backend="gloo")
    ddp = DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=options.ranks, num_nodes=options.nodes, max_steps=work.steps,
        strategy=sharded if shards else ddp,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, log_every_n_steps=100,
    )  # fmt: skip
    module = Module(work, shards)
    trainer.fit(module)
    assert module.clock is not None
    module.clock.finish(module.model)
    os._exit(0)


if __name__ == "__main__":
    main()
