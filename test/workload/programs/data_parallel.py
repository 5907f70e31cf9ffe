#!/usr/bin/env python3
"""Trains with nn.DataParallel: one process that uses all visible GPUs, with NCCL among them.

Prints "step N LOSS" after each step.
"""

import argparse
import time

import torch
from torch import nn


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    p.add_argument("--width", type=int, default=2048)
    a = p.parse_args()

    torch.manual_seed(1)
    layers = [layer for _ in range(4) for layer in (nn.Linear(a.width, a.width), nn.Tanh())]
    model = nn.DataParallel(nn.Sequential(*layers).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(1, a.steps + 1):
        x = torch.randn(64, a.width, generator=torch.Generator().manual_seed(step)).cuda()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        print("step", step, loss.item().hex(), flush=True)
        time.sleep(a.pause)
    print("done", flush=True)


if __name__ == "__main__":
    main()
