#!/usr/bin/env python3
"""A training step of a small convolutional network in JAX: one JSON line.

usage: [tightfit run .. --] python scripts/gpu_run/jax_step.py --label NAME [--batch 256] [--network resnet50] [--seconds N]

Takes steps for a number of seconds, under `tightfit run --report FILE` also until tuning has ended, but no longer than --most, then times
some.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
from report import Report

# Output channels, edge of the filter, stride.
LAYERS = [(64, 5, 1), (192, 5, 1), (384, 3, 1), (256, 3, 1)]

BLOCKS = [3, 4, 6, 3]


def loss_of(weights, x, target):
    for weight, (_, _, stride) in zip(weights, LAYERS, strict=True):
        x = jax.lax.conv_general_dilated(x, weight, (stride, stride), "SAME", precision=jax.lax.Precision.HIGHEST)
        x = jax.nn.relu(x)
    scores = x.mean((2, 3))[:, :10]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), target[:, None], 1).mean()


def convolved(x, weight, stride=1):
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), "SAME")


def normalized(x):
    mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5)


def resnet50_loss(weights, x, target):
    """ResNet-50's convolutions, normalizations without scale, and the loss."""
    weights = iter(weights)
    x = jax.nn.relu(normalized(convolved(x, next(weights), 2)))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = jax.nn.relu(normalized(convolved(x, next(weights))))
            y = jax.nn.relu(normalized(convolved(y, next(weights), stride)))
            y = normalized(convolved(y, next(weights)))
            x = normalized(convolved(x, next(weights), stride)) if block == 0 else x
            x = jax.nn.relu(x + y)
    scores = x.mean((2, 3)) @ next(weights)
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), target[:, None], 1).mean()


def resnet50_shapes():
    shapes, channels = [(64, 3, 7, 7)], 64
    for stage, blocks in enumerate(BLOCKS):
        width = 64 << stage
        for block in range(blocks):
            shapes += [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            shapes += [(4 * width, channels, 1, 1)] if block == 0 else []
            channels = 4 * width
    return [*shapes, (channels, 1000)]


def resnet50(batch):
    shapes = resnet50_shapes()
    keys = jax.random.split(jax.random.key(0), len(shapes) + 1)
    weights = [jax.random.normal(key, shape) * 0.03 for key, shape in zip(keys, shapes, strict=False)]
    return resnet50_loss, weights, jax.random.normal(keys[-1], (batch, 3, 224, 224)), jnp.arange(batch) % 1000


def small(batch):
    keys = jax.random.split(jax.random.key(0), len(LAYERS) + 2)
    weights, channels = [], 3
    for key, (width, edge, _) in zip(keys, LAYERS, strict=False):
        scale = (channels * edge * edge / 2) ** -0.5
        weights.append(scale * jax.random.normal(key, (width, channels, edge, edge)))
        channels = width
    x = jax.random.normal(keys[-2], (batch, 3, 27, 27))
    return loss_of, weights, x, jax.random.randint(keys[-1], (batch,), 0, 10)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--label", default="plain")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--network", choices=["small", "resnet50"], default="small")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--most", type=float, default=60)
    options = parser.parse_args()
    loss_of_network, weights, x, target = {"small": small, "resnet50": resnet50}[options.network](options.batch)
    step = jax.jit(jax.value_and_grad(loss_of_network))
    begin = time.perf_counter()
    loss, gradients = jax.block_until_ready(step(weights, x, target))
    first_s = time.perf_counter() - begin
    begin = time.perf_counter()
    report = Report()
    while options.seconds and report.goes_on(time.perf_counter() - begin, options.seconds, options.most):
        jax.block_until_ready(step(weights, x, target))
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        jax.block_until_ready(step(weights, x, target))
        times.append(1e3 * (time.perf_counter() - begin))
    norms = [float(jnp.linalg.norm(gradient)) for gradient in gradients] if options.network == "small" else []
    figures = {"loss": float(loss), "gradient_norms": norms, "first_s": first_s, "step_ms": sorted(times)[10]}
    print(json.dumps({"label": options.label, "network": options.network, **figures}))


if __name__ == "__main__":
    main()
