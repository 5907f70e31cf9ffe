#!/usr/bin/env python3
"""Trains a small transformer on synthetic text, the same way to the last bit each time.

DIR/loss gets one line for each step, the loss as a hexadecimal float: a run that was
dumped and restored, on whatever GPU, is compared with an uninterrupted one by
compare.py. Dropout draws from the GPU's random generator, Adam keeps state for each
parameter, so the losses follow all of it.

DIR/status   {"pid", "step", "uuid"}, replaced after each step
DIR/stop     ends the run after the current step when it exists
DIR/done     {"steps", "sha256" of all parameters, "ballast_intact"}, written last

Exit status: 0 done, 1 the ballast in GPU memory was damaged, else Python's own.
"""

import argparse
import math
import sys
import time

import job

job.prepare()

import torch  # noqa: E402
from torch import nn  # noqa: E402

VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 256, 128, 4, 3, 64, 16


class Block(nn.Module):
    """Attention is written out in matrix products: the fused kernels' backward passes
    add in an order that changes from run to run."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("future", torch.triu(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool), 1))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // HEADS)
        weights = scores.masked_fill(self.future, float("-inf")).softmax(-1)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def batch_of(step, seed):
    """Sequences that count upwards by a stride of their own: learnable, and a function of
    the step alone."""
    g = torch.Generator().manual_seed(seed * 1_000_003 + step)
    start = torch.randint(VOCABULARY, (BATCH, 1), generator=g)
    stride = torch.randint(1, 8, (BATCH, 1), generator=g)
    text = (start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY
    return text[:, :-1], text[:, 1:]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--dir", required=True)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--step-ms", type=int, default=0, help="pause after each step")
    p.add_argument("--mib", type=int, default=0, help="GPU memory to hold besides the model, in MiB")
    p.add_argument("--device", default="cuda:0")
    a = p.parse_args()

    job.deterministic(torch, a.seed)
    device = torch.device(a.device)
    model = Model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ballast = job.Ballast(torch, a.mib, device)
    log = job.Log(a.dir, job.Gpu(device))

    for step in range(1, a.steps + 1):
        tokens, following = (t.to(device) for t in batch_of(step, a.seed))
        optimizer.zero_grad(set_to_none=True)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), following.reshape(-1))
        loss.backward()
        optimizer.step()
        log.step(step, loss.item())
        if log.stop_wanted():
            break
        time.sleep(a.step_ms / 1000)

    intact = ballast.intact()
    log.done(steps=step, sha256=job.digest(model.state_dict().values()), ballast_intact=intact)
    if not intact:
        print(f"{a.dir}: the ballast in GPU memory was damaged", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
