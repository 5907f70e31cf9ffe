#!/usr/bin/env python3
"""A small GPT-2 with random weights behind an HTTP server.

POST /generate takes {"prompt": [tokens], "seed": N} and answers {"tokens": [...]}. POST /quit
ends the server. It prints "listening PORT" when it is ready.
"""

import argparse
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

try:
    from transformers import GPT2Config, GPT2LMHeadModel
except ModuleNotFoundError as missing:
    if missing.name != "transformers":
        raise
    print("not installed:", missing.name)
    raise SystemExit(77)


class Server(ThreadingHTTPServer):
    def __init__(self, port, model):
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model
        self.turn = threading.Lock()

    def generate(self, prompt, seed):
        with self.turn, torch.no_grad():
            torch.manual_seed(seed)
            tokens = torch.tensor([prompt], device=self.model.device)
            out = self.model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=16, do_sample=True, top_k=50, pad_token_id=0,
            )
            return out[0].tolist()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # the connection stays open

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/quit":
            self.answer({})
            threading.Thread(target=self.server.shutdown).start()
            return
        request = json.loads(body)
        self.answer({"tokens": self.server.generate(request["prompt"], request["seed"])})

    def answer(self, fields):
        body = json.dumps(fields).encode()
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
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--layers", type=int, default=4)
    a = p.parse_args()

    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=5000, n_positions=128, n_embd=a.width, n_layer=a.layers, n_head=a.width // 64, bos_token_id=0, eos_token_id=0,
    )
    if a.width > 1024:  # made where it is to be
        torch.set_default_dtype(torch.bfloat16)
        torch.set_default_device("cuda")
    model = GPT2LMHeadModel(config).to(os.environ.get("DEVICE", "cuda")).eval()
    server = Server(a.port, model)
    server.generate([1, 2, 3], 0)  # the first answer takes longest
    print("listening", server.server_port, flush=True)
    server.serve_forever()
    server.server_close()
    print("done", flush=True)


if __name__ == "__main__":
    main()
