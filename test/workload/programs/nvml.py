#!/usr/bin/env python3
"""Trains a model and watches the GPU with NVML: in the same process, or in one beside it.

Prints "step N LOSS". What NVML says (memory in use, temperature) is only checked for sense.
"""

import argparse
import os
import subprocess
import sys
import time

try:
    import pynvml
except ModuleNotFoundError as missing:
    if missing.name != "pynvml":
        raise
    print("not installed:", missing.name)
    raise SystemExit(77)


def look(handle):
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    degrees = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    if not 0 < memory.used <= memory.total or not 0 < degrees < 120:
        raise SystemExit(f"NVML says {memory.used} of {memory.total} bytes in use, {degrees} degrees")


def monitor(pause):
    """Keeps NVML open, and looks until the program that has started it has ended."""
    parent = os.getppid()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    while os.getppid() == parent:
        look(handle)
        time.sleep(pause)


def train(a):
    import torch
    from torch import nn

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    beside = handle = None
    if a.beside:
        beside = subprocess.Popen([sys.executable, __file__, "--monitor"])
    else:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for step in range(1, a.steps + 1):
        x = torch.randn(64, 256, generator=torch.Generator().manual_seed(step)).cuda()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        if handle:
            look(handle)
        elif beside.poll() is not None:
            raise SystemExit(f"the monitor has ended with {beside.returncode}")
        print("step", step, loss.item().hex(), flush=True)
        time.sleep(a.pause)
    if beside:
        beside.terminate()
        beside.wait()
    else:
        pynvml.nvmlShutdown()
    print("done", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    p.add_argument("--beside", action="store_true", help="watch in a process beside the training")
    p.add_argument("--monitor", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.monitor:
        monitor(a.pause)
    else:
        train(a)


if __name__ == "__main__":
    main()
