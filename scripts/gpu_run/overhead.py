#!/usr/bin/env python3
"""What the library costs where it changes nothing: one JSON line.

usage: [tightfit run .. --] python scripts/gpu_run/overhead.py --label NAME [--network resnet50:128:fp32]

`call_us`: host time of one small convolution, the device far behind or idle all the same; `first_ms`: the first convolution
of the process, with the libraries it loads; `step_ms`: a training step.
"""

import argparse
import statistics
import time

import torch
from measure import milliseconds, tell
from models import build, loss_of


def call_us(count=2000, repeats=40):
    """Host microseconds of a 1 x 1 convolution, the least of the repeats' means: what disturbs only adds."""
    x = torch.randn(2, 8, 4, 4, device="cuda")
    weight = torch.randn(8, 8, 1, 1, device="cuda")
    times = []
    with torch.no_grad():
        for _ in range(repeats):
            begin = time.perf_counter()
            for _ in range(count):
                torch.ops.aten.cudnn_convolution(x, weight, [0, 0], [1, 1], [1, 1], 1, False, False, False)
            times.append(1e6 * (time.perf_counter() - begin) / count)
            torch.cuda.synchronize()
    return min(times), statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--label", default="plain")
    parser.add_argument("--network", default="resnet50:128:fp32")
    options = parser.parse_args()
    torch.randn(8, device="cuda").sum().item()
    begin = time.perf_counter()
    torch.nn.Conv2d(8, 8, 3, device="cuda")(torch.randn(2, 8, 8, 8, device="cuda")).sum().item()
    first_ms = 1e3 * (time.perf_counter() - begin)
    least, median = call_us()
    network, batch, precision = options.network.split(":")
    model, x, target = build(network, int(batch), precision)

    def step():
        model.zero_grad(set_to_none=True)
        loss_of(model, x, target).backward()

    step_ms = milliseconds(step, 15, 4)
    tell(label=options.label, first_ms=first_ms, call_us=least, median_call_us=median, step_ms=step_ms)


if __name__ == "__main__":
    main()
