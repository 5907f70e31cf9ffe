#!/usr/bin/env python3
"""PyTorch and CuPy in one process, each with a CUDA runtime and an allocator of its own, which hand an array to each other.

Prints "step N SUM" after each step.
"""

import argparse
import time

try:
    import cupy
    import torch
except ModuleNotFoundError as missing:
    print("not installed:", missing.name)
    raise SystemExit(77)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    a = p.parse_args()

    torch.manual_seed(1)
    own = cupy.arange(32 << 20, dtype=cupy.float32)
    handed = torch.randint(0, 1000, (16 << 20,), device="cuda")
    for step in range(1, a.steps + 1):
        handed = (handed * 31 + step) % 1000003
        view = cupy.from_dlpack(handed)
        view += 1
        own = cupy.roll(own, 1)
        torch.cuda.synchronize()
        cupy.cuda.Device().synchronize()
        print("step", step, int(handed.sum()), int(view[step]), float(own[step]), flush=True)
        time.sleep(a.pause)
    print("done", flush=True)


if __name__ == "__main__":
    main()
