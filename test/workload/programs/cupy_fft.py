#!/usr/bin/env python3
"""Filters a signal with CuPy: FFT and matrix products on two streams. Prints "step N SUM"."""

import argparse
import hashlib
import time

try:
    import cupy
except ModuleNotFoundError as missing:
    if missing.name != "cupy":
        raise
    print("not installed:", missing.name)
    raise SystemExit(77)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    a = p.parse_args()

    cupy.random.seed(1)
    signal = cupy.random.standard_normal(1 << 22, dtype=cupy.float32)
    low = cupy.exp(-cupy.linspace(0, 4, (1 << 21) + 1, dtype=cupy.float32))
    matrix, _ = cupy.linalg.qr(cupy.random.standard_normal((1024, 1024), dtype=cupy.float32))
    turned = cupy.eye(1024, dtype=cupy.float32)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    for step in range(1, a.steps + 1):
        with streams[0]:
            signal = cupy.fft.irfft(cupy.fft.rfft(signal) * low).astype(cupy.float32)
            signal += cupy.roll(signal, step)
            signal /= cupy.abs(signal).max()
        with streams[1]:
            turned = turned @ matrix
        for stream in streams:
            stream.synchronize()
        digest = hashlib.sha256(cupy.asnumpy(signal).tobytes() + cupy.asnumpy(turned).tobytes())
        print("step", step, digest.hexdigest()[:16], flush=True)
        time.sleep(a.pause)
    print("done", flush=True)


if __name__ == "__main__":
    main()
