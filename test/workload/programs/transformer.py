"""Trains a transformer of about 1e9 parameters with Adam in float32 (22 GiB on the GPU), its data from four DataLoader workers, for
--seconds. Prints "step N TIME LOSS" after each step, TIME in seconds since 1970."""
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

VOCABULARY = 8192


class Tokens(IterableDataset):
    def __iter__(self):
        random = torch.Generator().manual_seed(get_worker_info().id)
        while True:
            yield torch.randint(0, VOCABULARY, (257,), generator=random)


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Model(args.width, args.layers).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    end = None
    for step, tokens in enumerate(DataLoader(Tokens(), batch_size=8, num_workers=4), 1):
        tokens = tokens.cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        value = loss.item()
        now = time.time()
        end = end or now + args.seconds
        print("step", step, f"{now:.3f}", value, flush=True)
        if now > end:
            break
    print("memory", torch.cuda.max_memory_reserved() >> 20, "MiB", flush=True)


if __name__ == "__main__":
    main()
