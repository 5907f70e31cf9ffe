#!/usr/bin/env python3
"""A kernel that computes on the GPU on request, over ZeroMQ, as a notebook's does.

The front end is a child of it: it sends requests and receives output, over TCP and over a
unix socket. Prints "step N ANSWER".
"""

import argparse
import os
import subprocess
import sys
import threading
import time

try:
    import zmq
except ModuleNotFoundError as missing:
    if missing.name != "zmq":
        raise
    print("not installed:", missing.name)
    raise SystemExit(77)


def beats(heartbeat):
    while True:
        heartbeat.send(heartbeat.recv())


def kernel(a):
    import torch

    context = zmq.Context()
    shell, output, heartbeat = context.socket(zmq.ROUTER), context.socket(zmq.PUB), context.socket(zmq.REP)
    port = shell.bind_to_random_port("tcp://127.0.0.1")
    beat = heartbeat.bind_to_random_port("tcp://127.0.0.1")
    path = f"ipc://{os.getcwd()}/output"
    output.bind(path)
    threading.Thread(target=beats, args=(heartbeat,), daemon=True).start()
    device = os.environ.get("DEVICE", "cuda")
    state = torch.eye(64, dtype=torch.float64, device=device)
    front = subprocess.Popen([sys.executable, __file__, "--connect", str(port), str(beat), path, "--steps", str(a.steps), "--pause", str(a.pause)])
    for _ in range(a.steps):
        client, request = shell.recv_multipart()
        generator = torch.Generator().manual_seed(int(request))
        turn, _ = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64, generator=generator))
        state = state @ turn.to(device)
        answer = state.sum().item().hex().encode()
        output.send_multipart([b"result", request, answer])
        shell.send_multipart([client, answer])
    if front.wait() != 0:
        raise SystemExit(f"the front end ended with {front.returncode}")
    print("done", flush=True)


def front_end(a):
    context = zmq.Context()
    port, beat, path = a.connect
    shell, output, heartbeat = context.socket(zmq.DEALER), context.socket(zmq.SUB), context.socket(zmq.REQ)
    shell.connect(f"tcp://127.0.0.1:{port}")
    heartbeat.connect(f"tcp://127.0.0.1:{beat}")
    output.connect(path)
    output.subscribe(b"result")
    time.sleep(1)  # a subscription takes a moment, and what is published before is lost
    for step in range(1, a.steps + 1):
        heartbeat.send(b"ping")
        if heartbeat.recv() != b"ping":
            raise SystemExit("the heart does not beat")
        shell.send(str(step).encode())
        answer = shell.recv()
        if output.recv_multipart() != [b"result", str(step).encode(), answer]:
            raise SystemExit("what was published is not what was answered")
        print("step", step, answer.decode(), flush=True)
        time.sleep(a.pause)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    p.add_argument("--connect", nargs=3, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.connect:
        front_end(a)
    else:
        kernel(a)


if __name__ == "__main__":
    main()
