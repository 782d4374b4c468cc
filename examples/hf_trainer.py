"""A script with Hugging Face's Trainer, and a small GPT-2 with random weights: nothing is downloaded."""

import argparse
import os
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import trainpkg


class Counting(torch.utils.data.Dataset):
    """Rows that count up, from different beginnings."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 16) % 64
        return {"input_ids": tokens, "labels": tokens}


class Told(TrainerCallback):
    """What the Trainer logs, for trainpkg's tables."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        trainpkg.log(state.global_step, **logs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        output_dir=str(args.out / "trainer"), max_steps=args.steps, per_device_train_batch_size=8, learning_rate=1e-2,
        logging_steps=2, eval_strategy="steps", eval_steps=12, save_strategy="no", report_to=[], disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    data = Counting()
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data, callbacks=[Told()])
    trainer.train()
    trainer.save_model(str(args.out / "model"))  # the Trainer sees to it that one rank writes
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # torch's threads now and then abort a Python that tidies up after itself
