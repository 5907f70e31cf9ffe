#!/usr/bin/env python3
"""Generates tokens one by one, as a server does for one client: some hundred small kernels for each, and a wait.

For SECONDS it prints "step N SECONDS", the time since its start, after each 50 tokens.
"""

import argparse
import time

import torch
from torch import nn


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--seconds", type=float, default=10)
    a = p.parse_args()

    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0, batch_first=True, device="cuda", dtype=torch.float16)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).eval()
    head = nn.Linear(512, 32000, device="cuda", dtype=torch.float16)
    embedding = nn.Embedding(32000, 512, device="cuda", dtype=torch.float16)
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    begun, step = time.time(), 0
    with torch.no_grad():
        while time.time() - begun < a.seconds:
            for _ in range(50):
                token = head(model(embedding(token))).argmax(-1)
                token.item()
            step += 1
            print("step", step, f"{time.time() - begun:.4f}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
