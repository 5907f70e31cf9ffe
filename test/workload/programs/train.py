#!/usr/bin/env python3
"""Trains a small convolutional network, fed by a DataLoader.

After each batch it prints "step N LOSS", the loss to the last bit.
"""

import argparse
import os
import time

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Image i and its label are a function of i alone."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        image = numpy.random.default_rng(i).standard_normal((3, 32, 32), dtype=numpy.float32)
        return torch.from_numpy(image), i % 10


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batches", type=int, default=100, help="in an epoch")
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--start-method", choices=("fork", "spawn", "forkserver"))
    p.add_argument("--persistent", action="store_true", help="keep the workers from one epoch to the next")
    p.add_argument("--pin", action="store_true", help="batches in pinned memory")
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    a = p.parse_args()

    device = os.environ.get("DEVICE", "cuda")
    torch.manual_seed(1)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 7 * 7, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Images(a.batches * 32), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(1),
        num_workers=a.workers, multiprocessing_context=a.start_method,
        persistent_workers=a.persistent, pin_memory=a.pin,
    )

    step = 0
    for _ in range(a.epochs):
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=a.pin), labels.to(device, non_blocking=a.pin)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            print("step", step, loss.item().hex(), flush=True)
            time.sleep(a.pause)
    print("done", sum(p.double().sum().item() for p in model.parameters()).hex(), flush=True)


if __name__ == "__main__":
    main()
