#!/usr/bin/env python3
"""Trains a model that is sharded (FSDP) and compiled, and all-reduces in a CUDA graph; start it with torchrun.

Only rank 0 looks at its losses as it goes, so the others run ahead of it. Rank 0 prints
"step N LOSS SUM"; each other rank prints all of its losses at its end.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def say(line):
    # In one piece: all ranks write to the same file, and torchrun makes Python write at once.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step of rank 0")
    p.add_argument("--width", type=int, default=512)
    a = p.parse_args()

    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device(os.environ.get("DEVICE", "cuda"), local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(1)
    model = nn.Sequential(*(Block(a.width) for _ in range(4))).to(device)
    for block in model:
        block.compile()
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(64, a.width, generator=torch.Generator().manual_seed(rank)).to(device)

    # Each replay sums over the ranks once more.
    sums = torch.full((1 << 20,), rank + 1.0, device=device)

    def reduce():
        dist.all_reduce(sums)
        sums.mul_(0.5).add_(1e-3 * (rank + 1))

    replay, graph = reduce, None
    if device.type == "cuda":
        reduce()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            reduce()
        replay = graph.replay

    losses = []
    for step in range(1, a.steps + 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        replay()
        if rank == 0:
            say(f"step {step} {loss.item().hex()} {sums[-1].item().hex()}")
            time.sleep(a.pause)
        else:
            losses.append((loss.detach(), sums[-1].clone()))
    if rank != 0:
        for step, (loss, total) in enumerate(losses, 1):
            say(f"step rank-{rank}-{step} {loss.item().hex()} {total.item().hex()}")
    dist.barrier()
    if graph:
        graph.reset()  # else the communicator waits for it without end
    dist.destroy_process_group()
    if rank == 0:
        say("done")


if __name__ == "__main__":
    main()
