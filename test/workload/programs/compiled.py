#!/usr/bin/env python3
"""Trains a model under torch.compile with CUDA graphs, then does the same once more.

The compiled kernels are chosen anew in each run, and so are the last bits of the losses. So
this program does not print them: it trains again from the same beginning, with the same
compiled code, and compares every loss bit for bit.
"""

import argparse
import copy
import time

import torch
from torch import nn


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step of the first time")
    a = p.parse_args()

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)).cuda()
    beginning = copy.deepcopy(model.state_dict())
    forward = torch.compile(model, mode="reduce-overhead")

    def train(pause):
        model.load_state_dict(beginning)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for step in range(1, a.steps + 1):
            x = torch.randn(128, 256, generator=torch.Generator().manual_seed(step)).cuda()
            torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(forward(x), x)
            loss.backward()
            optimizer.step()
            yield step, loss.item().hex()
            time.sleep(pause)

    # The first steps compile, and record the graphs.
    for step, _ in train(0):
        if step == 10:
            break
    losses = []
    for step, loss in train(a.pause):
        losses.append(loss)
        print("step", step, flush=True)
    for step, loss in train(0):
        if loss != losses[step - 1]:
            raise SystemExit(f"step {step}: the loss was {losses[step - 1]}, and is now {loss}")
    if len(set(losses)) < a.steps // 2:
        raise SystemExit("the losses do not change: nothing is learned")
    print("done", flush=True)


if __name__ == "__main__":
    main()
