#!/usr/bin/env python3
"""Trains an autoencoder with PyTorch Lightning, with its default way of starting workers."""

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as lightning
except ModuleNotFoundError as missing:
    if missing.name != "lightning":
        raise
    print("not installed:", missing.name)
    raise SystemExit(77)


class AutoEncoder(lightning.LightningModule):
    def __init__(self, pause):
        super().__init__()
        self.pause = pause
        self.encoder = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 256))

    def training_step(self, batch, _):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_index):
        print("step", self.global_step, outputs["loss"].item().hex(), flush=True)
        time.sleep(self.pause)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    a = p.parse_args()

    lightning.seed_everything(1)
    data = TensorDataset(torch.randn(6400, 256))
    trainer = lightning.Trainer(
        max_steps=a.steps, accelerator=os.environ.get("DEVICE", "cuda"), devices=1, deterministic=True,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(AutoEncoder(a.pause), DataLoader(data, batch_size=64, shuffle=True, num_workers=2))
    print("done", flush=True)


if __name__ == "__main__":
    main()
