"""The same training with Hugging Face's Trainer, under torchrun: `trainer_loop.py CASE [STEPS]`, for the GPT.

Its own default is fused AdamW; no reports, checkpoints or progress bar that nobody asked for, and no search for unused
parameters, which it makes by itself for a model that is not of its library.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.workload import OPTIM, TELL_STEPS, Clock, Work


class Wrapped(nn.Module):
    """The model with the signature that Trainer wants."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work, self.model = work, work.model()

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.work.loss(self.model, (input_ids, labels))}


class Samples(Dataset[dict[str, Tensor]]):
    def __init__(self, work: Work) -> None:
        self.pairs: Any = work.dataset()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        inputs, targets = self.pairs[place]
        return {"input_ids": inputs, "labels": targets}


class Ordered(Trainer):
    def _get_train_sampler(self, *_: Any, **__: Any) -> Sampler[int]:
        return self.model.work.sampler(None)  # type: ignore[union-attr, operator]


class Ticks(TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.clock.step()


def main() -> None:
    case, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    work = Work(case, world_size, steps)
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(), per_device_train_batch_size=work.batch, max_steps=work.steps,
        learning_rate=OPTIM["lr"], weight_decay=OPTIM["weight_decay"], adam_beta1=OPTIM["betas"][0],
        adam_beta2=OPTIM["betas"][1], lr_scheduler_type="constant", max_grad_norm=0.0, report_to="none",
        save_strategy="no", logging_steps=TELL_STEPS[case], disable_tqdm=True, use_cpu=True, ddp_backend="gloo",
        dataloader_pin_memory=False, ddp_find_unused_parameters=False,
    )  # fmt: skip
    dist.all_reduce(torch.ones(1))
    clock = Clock(work, arguments.process_index)
    model = Wrapped(work)
    Ordered(model=model, args=arguments, train_dataset=Samples(work), callbacks=[Ticks(clock)]).train()
    clock.finish(model)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
