"""A Lightning script. Lightning finds the ranks that it is given, once it is told how many there are."""

import argparse
import os
import sys
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import trainpkg


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Told(lightning.Callback):
    """Each step's loss, for trainpkg's tables."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        trainpkg.log(trainer.global_step, loss=outputs["loss"], epoch=trainer.current_epoch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()

    lightning.seed_everything(0)
    inputs = torch.randn(256, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=args.epochs, num_nodes=args.nodes, devices=args.devices, strategy="ddp", callbacks=[Told()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Regression()
    trainer.fit(model, loader)
    if trainer.is_global_zero:
        torch.save(model.state_dict(), args.out / "model.pt")
    trainer.strategy.barrier()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # torch's threads now and then abort a Python that tidies up after itself
