#!/usr/bin/env python3
"""Generates tokens with a language model whose layers transformers puts on all GPUs, by device_map.

Prints "step N TOKEN LOGIT" after each token. The weights are random, so that nothing is downloaded.
"""

import argparse
import os
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import accelerate  # noqa: F401: transformers needs it for a device_map
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
except ModuleNotFoundError as missing:
    print("not installed:", missing.name)
    raise SystemExit(77)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--pause", type=float, default=0.1, help="seconds after each token")
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--width", type=int, default=2048)
    a = p.parse_args()

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with tempfile.TemporaryDirectory() as d:
        GPT2LMHeadModel(GPT2Config(n_layer=a.layers, n_embd=a.width, n_head=16)).save_pretrained(d)
        model = AutoModelForCausalLM.from_pretrained(d, device_map="balanced")
    print("on", sorted({str(device) for device in model.hf_device_map.values()}), flush=True)
    tokens = torch.arange(8).unsqueeze(0).to(model.device)
    with torch.inference_mode():
        for step in range(1, a.steps + 1):
            logits = model(tokens[:, -64:]).logits[0, -1]
            token = int(logits.argmax())
            print("step", step, token, logits[token].item().hex(), flush=True)
            following = torch.tensor([[(token + step) % 50257]], device=tokens.device)
            tokens = torch.cat([tokens, following], dim=1)
            time.sleep(a.pause)
    print("done", flush=True)


if __name__ == "__main__":
    main()
