"""Lightning under Slurm as its documentation has it: `srun lightning_slurm.py FOLDER`, requeued by SIGUSR1.

`#SBATCH --signal=SIGUSR1@90` and SLURMEnvironment(requeue_signal): it saves and puts the job back into the queue. A
checkpoint every 50 steps, as ours in `recovery`, and `ckpt_path="last"`, so that a job that Slurm itself put back goes
on too. Rank 0 appends a line per step to FOLDER/steps: number of the Slurm restart, step.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.workload import OPTIM, Work

STEPS = 20_000
RANKS, NODES = 2, 2


class Module(lightning.LightningModule):
    def __init__(self, work: Work, folder: Path) -> None:
        super().__init__()
        self.work, self.model, self.folder = work, work.model(), folder

    def on_fit_start(self) -> None:
        print(f"rank {self.global_rank} is process {os.getpid()}", flush=True)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.work.loss(self.model, batch)

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_rank == 0:
            with (self.folder / "steps").open("a") as file:
                file.write(f"{os.environ.get('SLURM_RESTART_COUNT', '0')} {self.global_step}\n")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), fused=True, **OPTIM)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.work.dataset(), batch_size=self.work.batch, sampler=self.work.sampler(self.global_rank))


def main() -> None:
    folder = Path(sys.argv[1])
    saves = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=50, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, num_nodes=NODES, max_steps=STEPS, callbacks=[saves],
        strategy=DDPStrategy(process_group_backend="gloo"), default_root_dir=folder,
        plugins=[SLURMEnvironment(requeue_signal=signal.SIGUSR1)], logger=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Module(Work("conv", RANKS * NODES, STEPS), folder), ckpt_path="last")


if __name__ == "__main__":
    main()
