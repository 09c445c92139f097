#!/usr/bin/env python3
"""Whole training steps and their convolutions alone: one JSON line for each NETWORK:BATCH:PRECISION[:SIZE].

usage: [tightfit run .. --] python scripts/gpu_run/step.py --label NAME [--benchmark] [--steps N] [--no-convolutions] CASE ..

A step is forward, loss, backward and SGD (at rate 0, so that the data stays what it is). `first_step_s` holds all tuning.
`convolutions_ms` adds up the forward and the backward of each layer, alone and on random data, once for each occurrence.
"""

import argparse
import time

import torch
from measure import Peak, milliseconds, tell
from models import build, loss_of
from torch import nn

CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d)


def convolutions(model, x):
    """Every convolution layer with the shape of its input, how often it occurs, and whether its data has a gradient."""
    found = {}

    def remember(module, inputs, _):
        (data,) = inputs
        needs = data.requires_grad
        key = (tuple(data.shape), tuple(module.weight.shape), module.stride, module.padding, module.groups, needs)
        found.setdefault(key, [module, 0])[1] += 1

    hooks = [m.register_forward_hook(remember) for m in model.modules() if isinstance(m, CONVOLUTIONS)]
    model(x)
    for hook in hooks:
        hook.remove()
    return [(module, key[0], key[-1], count) for key, (module, count) in found.items()]


def alone(module, shape, needs_gradient, like):
    """Milliseconds of one layer's forward and backward, back to back."""
    layout = torch.preserve_format
    if like.dtype == torch.bfloat16:
        layout = torch.channels_last_3d if len(shape) == 5 else torch.channels_last
    x = torch.randn(shape, device=like.device, dtype=like.dtype).to(memory_format=layout).requires_grad_(needs_gradient)
    wanted = [module.weight, *([x] if needs_gradient else [])]
    gradient = torch.randn_like(module(x))

    def several():
        for _ in range(4):
            torch.autograd.grad(module(x), wanted, gradient)

    return milliseconds(several, 3, 1) / 4


def measure(case, options):
    network, batch, precision, *size = case.split(":")
    model, x, target = build(network, int(batch), precision, size=int(size[0]) if size else None)
    solver = torch.optim.SGD(model.parameters(), lr=0.0)

    def step():
        solver.zero_grad(set_to_none=True)
        loss_of(model, x, target).backward()
        solver.step()

    with Peak() as first:
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        first_step = time.perf_counter() - begin
    figures = {"step_ms": milliseconds(step, options.steps)}
    with Peak() as peak:
        for _ in range(3):
            step()
    figures.update(peak.gib())
    if not options.no_convolutions:
        layers = convolutions(model, x)
        solver.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        figures["convolutions_ms"] = sum(alone(*layer, x) * count for *layer, count in layers)
    figures.update({f"first_{name}": value for name, value in first.gib().items()})
    tell(label=options.label, case=case, benchmark=options.benchmark, first_step_s=first_step, **figures)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--label", default="plain")
    parser.add_argument("--benchmark", action="store_true")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--no-convolutions", action="store_true")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = options.benchmark
    for case in options.cases:
        try:
            measure(case, options)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            tell(label=options.label, case=case, benchmark=options.benchmark, error=str(error).splitlines()[0][:200])
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
