#!/usr/bin/env python3
"""Trains on samples that come from a process which has a pool of processes of its own.

All of them are forked after CUDA was initialized: the producer from the training process,
and the pool from the producer. Prints "step N LOSS" after each step.
"""

import argparse
import multiprocessing
import os
import time

import numpy
import torch
from torch import nn


def sample(i):
    x = numpy.random.default_rng(i).standard_normal((64, 32), dtype=numpy.float32)
    return x, numpy.square(x).mean(axis=1, keepdims=True)


def produce(queue, steps):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for i in range(steps):
            queue.put(pool.apply(sample, (i,)))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    a = p.parse_args()

    device = os.environ.get("DEVICE", "cuda")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    fork = multiprocessing.get_context("fork")
    queue = fork.Queue(maxsize=4)
    producer = fork.Process(target=produce, args=(queue, a.steps))
    producer.start()
    for step in range(1, a.steps + 1):
        x, y = (torch.from_numpy(part).to(device) for part in queue.get())
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print("step", step, loss.item().hex(), flush=True)
        time.sleep(a.pause)
    producer.join()
    if producer.exitcode != 0:
        raise SystemExit(f"the producer ended with {producer.exitcode}")
    print("done", flush=True)


if __name__ == "__main__":
    main()
