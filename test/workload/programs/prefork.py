#!/usr/bin/env python3
"""A server that forks a worker for each of two GPUs before it uses any, and asks itself: step N VALUE for each answer."""

import argparse
import importlib.util
import os
import signal
import socket
import time


def work(listener, gpu):
    import torch

    device = f"cuda:{gpu}"
    torch.manual_seed(1)
    weights = torch.randn(1024, 1024, dtype=torch.float64, device=device)
    state = torch.eye(1024, dtype=torch.float64, device=device)
    while True:
        connection, _ = listener.accept()
        with connection:
            n = int(connection.recv(64))
            value = ((state * n) @ weights).sum().item()
            connection.sendall(f"{value:.6e}".encode())


def ask(port, n):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(str(n).encode())
        return connection.recv(64).decode()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=400)
    a = p.parse_args()

    if importlib.util.find_spec("torch") is None:  # importing it here would be what the workers do
        print("not installed: torch")
        raise SystemExit(77)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    workers = []
    for gpu, listener in enumerate(listeners):
        worker = os.fork()
        if worker == 0:
            work(listener, gpu)
        workers.append(worker)
    ports = [listener.getsockname()[1] for listener in listeners]
    for step in range(1, a.steps + 1):
        left, right = (ask(port, step) for port in ports)
        if left != right:
            print("the GPUs differ:", left, right, flush=True)
        print("step", step, left, flush=True)
        time.sleep(0.05)
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
        os.waitpid(worker, 0)
    print("done", flush=True)


if __name__ == "__main__":
    main()
