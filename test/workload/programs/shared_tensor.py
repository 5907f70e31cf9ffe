#!/usr/bin/env python3
"""Two processes work on one tensor of 1 GiB by turns, by CUDA IPC as torch.multiprocessing has it.

Prints "step N SUM" after each turn.
"""

import argparse
import time

import torch
import torch.multiprocessing as mp


def other(tensors, requests, answers):
    tensor = tensors.get()
    while requests.get():
        tensor += 1
        torch.cuda.synchronize()
        answers.put(True)
    del tensor
    answers.put(True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    p.add_argument("--mib", type=int, default=1024)
    a = p.parse_args()

    mp.set_start_method("spawn")
    tensors, requests, answers = mp.Queue(), mp.Queue(), mp.Queue()
    child = mp.Process(target=other, args=(tensors, requests, answers), daemon=True)
    child.start()
    tensor = torch.arange(a.mib << 18, dtype=torch.int32, device="cuda") % 1000
    tensors.put(tensor)
    for step in range(1, a.steps + 1):
        requests.put(True)
        answers.get()
        tensor *= 3
        print("step", step, int(tensor.sum(dtype=torch.int64).item()), flush=True)
        time.sleep(a.pause)
    requests.put(False)
    answers.get()
    child.join()
    print("done", flush=True)


if __name__ == "__main__":
    main()
