#!/usr/bin/env python3
"""A language model with random weights behind HTTP, as people serve one: a static cache, torch.compile, CUDA graphs.

POST /generate takes {"prompt": [tokens]} and answers {"tokens": [...]}, the likeliest ones. It prints "listening PORT"
when it is ready.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, POSITIONS, NEW = 32000, 512, 16


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, hidden = heads, width * 43 // 16
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)
        for name in "keys", "values":
            self.register_buffer(name, torch.zeros(1, heads, POSITIONS, width // heads))

    def forward(self, x, at, mask):
        q, k, v = (t.view(1, 1, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        seen = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        gate, up = self.up(self.between(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(POSITIONS, width)
        self.layers = nn.ModuleList(Layer(width, width // 128) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, token, at):
        mask = (torch.arange(POSITIONS, device=at.device) <= at).view(1, 1, 1, -1)
        x = self.embedding(token) + self.places(at).view(1, 1, -1)
        for layer in self.layers:
            x = layer(x, at, mask)
        return self.head(self.norm(x)).argmax(-1)


class Server(ThreadingHTTPServer):
    def __init__(self, port, model):
        super().__init__(("127.0.0.1", port), Handler)
        self.step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        self.work = []  # CUDA graphs are one thread's
        self.ready = threading.Condition()

    def generate(self, prompt):
        """The tokens that follow; the main thread computes them."""
        asked = {"prompt": prompt, "answer": None}
        with self.ready:
            self.work.append(asked)
            self.ready.notify_all()
            self.ready.wait_for(lambda: asked["answer"] is not None)
        return asked["answer"]

    def compute(self, prompt):
        tokens = list(prompt)
        with torch.no_grad():
            for i in range(len(prompt) + NEW):
                at = torch.tensor([i], device="cuda")
                token = self.step(torch.tensor([[tokens[i]]], device="cuda"), at)
                if i + 1 >= len(tokens):
                    tokens.append(token.item())
        return tokens

    def serve(self):
        while True:
            with self.ready:
                self.ready.wait_for(lambda: self.work)
                asked = self.work.pop(0)
            answer = self.compute(asked["prompt"])
            with self.ready:
                asked["answer"] = answer
                self.ready.notify_all()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"tokens": self.server.generate(request["prompt"])}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--width", type=int, default=4096)
    p.add_argument("--layers", type=int, default=32)
    a = p.parse_args()

    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(a.width, a.layers).eval()
    server = Server(a.port, model)
    for _ in range(2):  # compiles, and captures the graph
        server.compute([1, 2, 3])
    print("listening", server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.serve()


if __name__ == "__main__":
    main()
