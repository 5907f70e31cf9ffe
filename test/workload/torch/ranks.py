#!/usr/bin/env python3
"""Data-parallel training of a small network, one process a GPU, over NCCL.

The parent imports no torch; it starts the ranks and waits. Rank i writes DIR/rank-i/loss,
status and done as train.py does: each line has the step, this rank's loss, and the sum of
the all-reduced gradient (equal on all ranks). DIR/stop ends all ranks at the same step.

What lies between the ranks is kept to what can be dumped:
- no CUDA IPC (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE): driver 580 cannot restore it;
- NCCL talks over TCP on lo, so the dump and the restore need --tcp-established;
- the rendezvous is a file that is opened for each access: no TCP store;
- no InfiniBand, no RAS sockets, no monitor thread that reads the store all the time.

Exit status: 0 done, else the first rank that failed: its status, or 128 + signal.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

import job

NCCL_SETTINGS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_NSOCKS_PERTHREAD": "1",
    "NCCL_RAS_ENABLE": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # A restore can come hours after the dump: no rank may call the others dead for it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--dir", required=True)
    p.add_argument("--gpus", default="0,1", help="one rank on each (default %(default)s)")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--step-ms", type=int, default=0, help="pause after each step")
    p.add_argument("--mib", type=int, default=0, help="GPU memory for each rank to hold besides the model, in MiB")
    p.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: on the CPU, to try this script")
    p.add_argument("--share-memory", action="store_true", help="leave NCCL's P2P and SHM transports on, which driver 580 cannot restore")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--store", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.gpus = [int(g) for g in a.gpus.split(",")]
    return a


def parent(a):
    os.makedirs(a.dir, exist_ok=True)
    # A store of an earlier run would hand out its addresses.
    store = os.path.join(os.path.abspath(a.dir), f"store-{os.getpid()}-{time.time_ns()}")
    env = {**os.environ, **NCCL_SETTINGS}
    if a.share_memory:
        del env["NCCL_P2P_DISABLE"], env["NCCL_SHM_DISABLE"]
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--store", store, "--rank"]
    ranks = {}
    for rank in range(len(a.gpus)):
        process = subprocess.Popen([*command, str(rank)], env=env, stdin=subprocess.DEVNULL)
        ranks[process.pid] = rank

    failure = 0
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid, None)
        code = os.waitstatus_to_exitcode(status)
        if rank is None or code == 0 or failure:
            continue
        failure = code if code > 0 else 128 - code
        print(f"rank {rank} (pid {pid}) ended with {failure}; ending the others", file=sys.stderr, flush=True)
        for other in ranks:
            os.kill(other, signal.SIGKILL)
    if os.path.exists(store):
        os.unlink(store)
    return failure


def rank_main(a):
    job.die_with_parent()
    job.prepare()
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch import nn

    job.deterministic(torch, a.seed)  # the same initial parameters on every rank
    size = len(a.gpus)
    where = {}
    if a.backend == "nccl":
        device = torch.device("cuda", a.gpus[a.rank])
        torch.cuda.set_device(device)
        where = {"device_id": device}  # connects now, not at the first collective
    else:
        device = torch.device("cpu")
    dist.init_process_group(
        a.backend,
        store=dist.FileStore(a.store, size),
        rank=a.rank,
        world_size=size,
        timeout=timedelta(hours=24),
        **where,
    )

    width = 256
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    model.to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    ballast = job.Ballast(torch, a.mib, device)
    log = job.Log(os.path.join(a.dir, f"rank-{a.rank}"), job.Gpu(device))
    stop_file = os.path.join(a.dir, "stop")

    for step in range(1, a.steps + 1):
        # Every rank has samples of its own, a function of seed, step and rank alone.
        g = torch.Generator().manual_seed((a.seed * 1_000_003 + step) * 64 + a.rank)
        x = torch.randn(128, width, generator=g).to(device)
        y = x.square().mean(1, keepdim=True)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()

        # The wish to stop travels with the gradient: all ranks see it at the same step.
        stop = torch.full((1,), float(os.path.exists(stop_file)), device=device)
        flat = torch.cat([p.grad.flatten() for p in parameters] + [stop])
        dist.all_reduce(flat)
        gradient, stop = flat[:-1] / size, flat[-1].item()
        at = 0
        for p in parameters:
            p.grad.copy_(gradient[at : at + p.numel()].view_as(p))
            at += p.numel()
        optimizer.step()
        log.step(step, loss.item(), gradient.sum().item())
        if stop:
            break
        time.sleep(a.step_ms / 1000)

    intact = ballast.intact()
    log.done(steps=step, sha256=job.digest(model.state_dict().values()), ballast_intact=intact)
    dist.destroy_process_group()
    if not intact:
        print(f"{log.dir}: the ballast in GPU memory was damaged", file=sys.stderr)
        return 1
    return 0


def main():
    a = arguments()
    return parent(a) if a.rank is None else rank_main(a)


if __name__ == "__main__":
    sys.exit(main())
