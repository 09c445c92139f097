#!/usr/bin/env python3
"""A training step of a small convolutional network in JAX: one JSON line.

usage: [tightfit run .. --] python scripts/gpu_run/jax_step.py --label NAME [--batch 256]
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp

# Output channels, edge of the filter, stride.
LAYERS = [(64, 5, 1), (192, 5, 1), (384, 3, 1), (256, 3, 1)]


def loss_of(weights, x, target):
    for weight, (_, _, stride) in zip(weights, LAYERS, strict=True):
        x = jax.lax.conv_general_dilated(x, weight, (stride, stride), "SAME", precision=jax.lax.Precision.HIGHEST)
        x = jax.nn.relu(x)
    scores = x.mean((2, 3))[:, :10]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), target[:, None], 1).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--label", default="plain")
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), len(LAYERS) + 2)
    weights, channels = [], 3
    for key, (width, edge, _) in zip(keys, LAYERS, strict=False):
        scale = (channels * edge * edge / 2) ** -0.5
        weights.append(scale * jax.random.normal(key, (width, channels, edge, edge)))
        channels = width
    x = jax.random.normal(keys[-2], (options.batch, 3, 27, 27))
    target = jax.random.randint(keys[-1], (options.batch,), 0, 10)
    step = jax.jit(jax.value_and_grad(loss_of))
    begin = time.perf_counter()
    loss, gradients = jax.block_until_ready(step(weights, x, target))
    first_s = time.perf_counter() - begin
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        jax.block_until_ready(step(weights, x, target))
        times.append(1e3 * (time.perf_counter() - begin))
    norms = [float(jnp.linalg.norm(gradient)) for gradient in gradients]
    figures = {"loss": float(loss), "gradient_norms": norms, "first_s": first_s, "step_ms": sorted(times)[5]}
    print(json.dumps({"label": options.label, **figures}))


if __name__ == "__main__":
    main()
