#!/usr/bin/env python3
"""Training fed by a DataLoader whose workers are forked after CUDA was initialised.

The workers use no CUDA, but keep the parent's /dev/nvidia* descriptors and mappings.
DIR/loss, status, stop and done are as in train.py.
"""

import argparse
import sys
import time

import job

job.prepare()

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

WIDTH, BATCH = 64, 32


class Synthetic(Dataset):
    """Sample i is a function of the seed and i alone, whichever worker makes it."""

    def __init__(self, seed, size):
        self.seed, self.size = seed, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + i)
        x = torch.randn(WIDTH, generator=g)
        return x, x.square().mean().reshape(1)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--dir", required=True)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--step-ms", type=int, default=0, help="pause after each step")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--device", default="cuda:0")
    a = p.parse_args()

    job.deterministic(torch, a.seed)
    device = torch.device(a.device)
    # On the GPU before the loader forks: its workers inherit the driver's descriptors.
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    log = job.Log(a.dir, job.Gpu(device))
    loader = DataLoader(
        Synthetic(a.seed, a.steps * BATCH),
        batch_size=BATCH,
        num_workers=a.workers,
        multiprocessing_context="fork",
    )

    for step, (x, y) in enumerate(loader, 1):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        log.step(step, loss.item())
        if log.stop_wanted():
            break
        time.sleep(a.step_ms / 1000)
    log.done(steps=step, sha256=job.digest(model.state_dict().values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
