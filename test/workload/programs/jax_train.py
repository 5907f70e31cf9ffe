#!/usr/bin/env python3
"""Trains a network with JAX, its batches shared out among all GPUs, then does the same once more.

XLA chooses its kernels anew in each run, and so are the last bits of the losses. So this
program trains again from the same beginning, with the same compiled step, and compares
every loss bit for bit.
"""

import argparse
import time

try:
    import jax
except ModuleNotFoundError as missing:
    if missing.name != "jax":
        raise
    print("not installed:", missing.name)
    raise SystemExit(77)

import jax.numpy as jnp
import numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def loss_of(parameters, x):
    y = x
    for w, b in parameters:
        y = jnp.tanh(y @ w + b)
    return jnp.mean((y - x) ** 2)


@jax.jit
def train_step(parameters, x):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x)
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, parameters, gradients), loss


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--pause", type=float, default=0.05, help="seconds after each step of the first time")
    a = p.parse_args()

    devices = jax.devices()
    print("on", devices, flush=True)
    mesh = Mesh(numpy.array(devices), ("batch",))
    shared, copied = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    keys = jax.random.split(jax.random.PRNGKey(1), 3)
    beginning = [(0.05 * jax.random.normal(key, (256, 256)), jnp.zeros(256)) for key in keys]

    def train(pause):
        parameters = jax.device_put(beginning, copied)
        for step in range(1, a.steps + 1):
            x = numpy.random.default_rng(step).standard_normal((128, 256), dtype=numpy.float32)
            parameters, loss = train_step(parameters, jax.device_put(x, shared))
            yield step, float(loss).hex()
            time.sleep(pause)

    losses = []
    for step, loss in train(a.pause):
        losses.append(loss)
        print("step", step, flush=True)
    for step, loss in train(0):
        if loss != losses[step - 1]:
            raise SystemExit(f"step {step}: the loss was {losses[step - 1]}, and is now {loss}")
    if len(set(losses)) < a.steps // 2:
        raise SystemExit("the losses do not change: nothing is learned")
    print("done", flush=True)


if __name__ == "__main__":
    main()
