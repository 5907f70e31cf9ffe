#!/usr/bin/env python3
"""Clients of gpt2_server.py, each with one connection that it never opens again.

Each sends a request as soon as the one before is answered.

After each answer it prints "step CLIENT-N TOKENS". At the end it ends the server.
"""

import argparse
import http.client
import json
import threading


def ask(connection, path, fields):
    connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = response.read()
    if response.status != 200 or response.will_close:
        raise RuntimeError(f"{path}: status {response.status}, the connection ends: {response.will_close}")
    return json.loads(body)


class Client(threading.Thread):
    def __init__(self, number, port, requests):
        super().__init__()
        self.number, self.requests = number, requests
        # No timeout: an answer takes as long as the server is away.
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.connection.auto_open = 0
        self.connection.connect()
        self.served = 0

    def run(self):
        for i in range(1, self.requests + 1):
            prompt = [(self.number * 1000 + i * 7 + k) % 5000 for k in range(8)]
            tokens = ask(self.connection, "/generate", {"prompt": prompt, "seed": i})["tokens"]
            if tokens[: len(prompt)] != prompt:
                raise RuntimeError(f"the answer to {prompt} is {tokens}")
            print("step", f"{self.number}-{i}", *tokens[len(prompt) :], flush=True)
            self.served = i


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("port", type=int)
    p.add_argument("--clients", type=int, default=3)
    p.add_argument("--requests", type=int, default=120, help="of each client")
    a = p.parse_args()

    clients = [Client(number, a.port, a.requests) for number in range(a.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if any(client.served != a.requests for client in clients):
        raise SystemExit("a client lost its connection")
    ask(clients[0].connection, "/quit", {})
    print("done", flush=True)


if __name__ == "__main__":
    main()
