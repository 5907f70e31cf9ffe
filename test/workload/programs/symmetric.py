#!/usr/bin/env python3
"""Sums over memory that all ranks map (PyTorch's symmetric memory); start it with torchrun.

The sum is in a CUDA graph, and each rank reads the next one's memory itself. Rank 0 prints
"step N SUM READ" as it goes; the others run ahead of it and look at their results now and then.
"""

import argparse
import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric
except ImportError as err:
    print(f"missing: {err}")
    sys.exit(77)


def say(line):
    # In one piece: all ranks write to the same file, and torchrun makes Python write at once.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step of rank 0")
    p.add_argument("--look", type=int, default=20, help="steps after which the other ranks look at their results; 0: at the end")
    p.add_argument("--mib", type=int, default=640, help="memory of each rank that the others map")
    a = p.parse_args()

    rank, ranks, local = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    world = dist.group.WORLD

    sums = symmetric.empty(a.mib << 18, dtype=torch.float32, device=device)
    handle = symmetric.rendezvous(sums, world)
    next_one = handle.get_buffer((rank + 1) % ranks, sums.shape, sums.dtype)
    sums.copy_(torch.randn(sums.shape, generator=torch.Generator().manual_seed(rank)))

    def reduce():
        torch.ops.symm_mem.two_shot_all_reduce_(sums, "sum", world.group_name)
        sums.mul_(0.5).add_(1e-3 * (rank + 1))

    reduce()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        reduce()

    name, look = ("", 1) if rank == 0 else (f"rank-{rank}-", a.look or a.steps)
    results = []
    for step in range(1, a.steps + 1):
        graph.replay()
        handle.barrier(channel=0)
        results.append((step, sums[::65537].sum(), next_one[-1] * 1))
        handle.barrier(channel=1)
        if step % look == 0 or step == a.steps:
            for n, total, read in results:
                say(f"step {name}{n} {total.item().hex()} {read.item().hex()}")
            results = []
        if rank == 0:
            time.sleep(a.pause)
    dist.barrier()
    graph.reset()  # before the communicator
    dist.destroy_process_group()
    if rank == 0:
        say("done")


if __name__ == "__main__":
    main()
