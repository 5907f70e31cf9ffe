#!/usr/bin/env python3
"""Trains with DistributedDataParallel; start it with torchrun.

Only rank 0 looks at its losses as it goes, so the others run ahead of it. Rank 0 prints
"step N LOSS"; each other rank prints all of its losses at its end.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def say(line):
    # In one piece: all ranks write to the same file, and torchrun makes Python write at once.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step of rank 0")
    p.add_argument("--hidden", type=int, default=512, help="width of the hidden layer")
    a = p.parse_args()

    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    on_gpus = os.environ.get("DEVICE", "cuda") == "cuda"
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, a.hidden), nn.Tanh(), nn.Linear(a.hidden, 256)).to(device)
    model = DistributedDataParallel(model, device_ids=[local] if on_gpus else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    # The same for every step, so that nothing makes a rank wait for its GPU.
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(rank)).to(device)
    losses = []
    for step in range(1, a.steps + 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        if rank == 0:
            say(f"step {step} {loss.item().hex()}")
            time.sleep(a.pause)
        else:
            losses.append(loss.detach())
    if rank != 0:
        for step, loss in enumerate(losses, 1):
            say(f"step rank-{rank}-{step} {loss.item().hex()}")
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        say("done")


if __name__ == "__main__":
    main()
