#!/usr/bin/env python3
"""Applies a kernel in Triton to its own result, over and over. Prints "step N SUM"."""

import argparse
import time

import torch

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError as missing:
    if missing.name != "triton":
        raise
    print("not installed:", missing.name)
    raise SystemExit(77)


@triton.jit
def logistic_kernel(x, out, n, r, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, r * value * (1 - value), mask=at < n)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    a = p.parse_args()

    n = 64 << 20
    x = torch.linspace(0.01, 0.99, n, device="cuda")
    out = torch.empty_like(x)
    for step in range(1, a.steps + 1):
        logistic_kernel[(triton.cdiv(n, 1024),)](x, out, n, 3.9, BLOCK=1024)
        x, out = out, x
        print("step", step, x.double().sum().item().hex(), flush=True)
        time.sleep(a.pause)
    print("done", flush=True)


if __name__ == "__main__":
    main()
