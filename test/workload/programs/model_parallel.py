#!/usr/bin/env python3
"""Trains a model whose halves lie on two GPUs, with more than 1 GiB of parameters on each.

Prints "step N LOSS" after each step.
"""

import argparse
import os
import time

import torch
from torch import nn


class TwoHalves(nn.Module):
    def __init__(self, width, first, second):
        super().__init__()
        self.first, self.second = first, second
        self.front = nn.Sequential(*(layer for _ in range(2) for layer in (nn.Linear(width, width, device=first), nn.Tanh())))
        self.back = nn.Sequential(nn.Linear(width, width, device=second), nn.Tanh(), nn.Linear(width, width, device=second))

    def forward(self, x):
        return self.back(self.front(x.to(self.first)).to(self.second))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    p.add_argument("--width", type=int, default=12288)
    a = p.parse_args()

    first, second = os.environ.get("DEVICES", "cuda:0 cuda:1").split()
    torch.manual_seed(1)
    model = TwoHalves(a.width, first, second)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(1, a.steps + 1):
        x = torch.randn(16, a.width, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.to(second))
        loss.backward()
        optimizer.step()
        print("step", step, loss.item().hex(), flush=True)
        time.sleep(a.pause)
    print("done", flush=True)


if __name__ == "__main__":
    main()
