#!/usr/bin/env python3
"""Measures the host's work for a fitted step: time of packs, unpacks and reruns, compared with the step without a budget. Prints a line of JSON each.

usage: scripts/fit-host.py [--network convnext|resnet] [--share 40] [--device cpu|cuda] [--steps 40] [--plan FILE]

The networks have the layers of ConvNeXt-B and ResNet-50 but few channels, so that a step takes hardly longer than it takes to queue. Copies are taken
to be slow, so that plans rerun operations; --copies offloads instead. With --plan, the decisions are read from FILE, or the first run writes them
there. So two versions of the package can carry out the same ones: run with PYTHONPATH set to one, then to the other. Times are the least of all
steps. `forward_us` is the added time of the whole forward pass over plain's, divided by the number of packs. `pack_us` and `unpack_us` include the
clock's own time. `out_us`, `into_us` and `wait_us` are for one call each, which starts a copy or lets the device wait for one: on a GPU, none of them
may wait itself. `rerun_us` is for one operation with everything around it, `call_us` for its call alone. `by_operation` has the number of each and
the time of its call.
"""

import argparse
import gc
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

os.environ.update(TIGHTFIT_MEASURE="0", TIGHTFIT_QUIET="1")

import tightfit.torch as tt  # noqa: E402
from tightfit import _native  # noqa: E402
from tightfit._budget.api import session_of  # noqa: E402
from tightfit._budget.eager import passes  # noqa: E402
from tightfit._budget.plan import decide  # noqa: E402
from tightfit._budget.record import builder, cost  # noqa: E402


class Bottleneck(nn.Module):
    """As in ResNet-50, version 1.5."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.c2, self.n2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.c3, self.n3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        new = before != 4 * width or stride != 1
        self.skip = nn.Sequential(nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)) if new else None

    def forward(self, x):
        y = self.relu(self.n1(self.c1(x)))
        y = self.n3(self.c3(self.relu(self.n2(self.c2(y)))))
        y += x if self.skip is None else self.skip(x)
        return self.relu(y)


def resnet():
    layers = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 8
    for width, count, stride in ((8, 3, 1), (16, 4, 2), (32, 6, 2), (32, 3, 2)):
        for place in range(count):
            layers.append(Bottleneck(before, width, 1 if place else stride))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class Block(nn.Module):
    """As in ConvNeXt, without stochastic depth."""

    def __init__(self, width):
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x):
        y = self.narrow(nn.functional.gelu(self.wide(self.norm(self.depth(x).permute(0, 2, 3, 1)))))
        return x + self.scale * y.permute(0, 3, 1, 2)


def convnext():
    layers, before = [nn.Conv2d(3, 8, 4, 4)], 8
    for width, count in ((8, 3), (16, 3), (16, 27), (16, 3)):
        if len(layers) > 1:
            layers.append(nn.Conv2d(before, width, 2, 2))
        layers += [Block(width) for _ in range(count)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class Planned:
    """The planner, with its answers kept in a file."""

    def __init__(self, path):
        self.path = path
        self.known = json.loads(path.read_text()) if path.exists() else {}

    def __getattr__(self, name):
        return getattr(_native, name)

    def plan_step(self, text, budget, seconds):
        key = f"{budget} bytes, {seconds} s"
        if key not in self.known:
            self.known[key] = _native.plan_step(text, budget, seconds)
            self.path.write_text(json.dumps(self.known))
        return self.known[key]


class Clock:
    """Adds up the time of calls."""

    def __init__(self):
        self.seconds, self.calls = {}, {}

    def timed(self, name, call):
        def wrapped(*args, **named):
            begin = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
                self.calls[name] = self.calls.get(name, 0) + 1

        return wrapped


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("convnext", "resnet"), default="convnext")
    parser.add_argument("--share", type=int, default=40, help="percent of what plain needs beside what is resident")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--copies", action="store_true", help="offload rather than rerun")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device(options.device)
    # Small maps are planned like large ones.
    builder.LEAST_BYTES = 1
    rates = cost.rates_of(device)
    link = 1e12 if options.copies else 1e6
    slow = cost.Rates(rates.wide, rates.narrow, rates.memory, link, rates.call_us)
    cost._CPU = slow
    cost._rates_of_gpu = lambda name: slow
    if options.plan is not None:
        decide._native = Planned(options.plan)
    model = (convnext() if options.network == "convnext" else resnet()).to(device).train()
    # With fewer samples, ResNet's gradients alone are half of its need above the resident bytes.
    x = torch.randn(4 if options.network == "convnext" else 8, 3, 64, 64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def synchronize():
        if device.type == "cuda":
            torch.cuda.synchronize()

    def one():
        optimizer.zero_grad()
        synchronize()
        begin = time.perf_counter()
        loss = model(x).square().mean()
        middle = time.perf_counter()
        loss.backward()
        return middle - begin, time.perf_counter() - middle

    def least(run):
        return [round(1e3 * min(column), 3) for column in zip(*(run() for _ in range(options.steps)), strict=True)]

    one()
    gc.disable()
    plain = least(one)
    found = tt.plan(model, x, optimizer=optimizer, host_budget="64GiB")
    lives = found._fitted.lives
    resident = sum(size for size, stays in zip(lives.bytes, lives.resident, strict=True) if stays)
    budget = resident + (found.plain - resident) * options.share // 100
    tt.fit(model, budget, optimizer=optimizer, host_budget="64GiB")
    # On a GPU, the first four passes look at their peaks.
    for _ in range(6):
        one()
    bound = session_of(model).last.bound
    if bound is None:
        raise SystemExit(f"{options.network} needs nothing given up at {options.share}%; give a smaller share")
    fitted = least(one)
    lines = [line for programs in bound.programs.values() for program in programs for line in program.lines]
    clock = Clock()
    for name in ("pack", "unpack", "seal"):
        setattr(passes.Pass, name, clock.timed(name, getattr(passes.Pass, name)))
    passes.rebuild = clock.timed("rebuild", passes.rebuild)
    copies = type(session_of(model).planner.copies_on(device))
    for name in ("out", "into", "wait"):
        setattr(copies, name, clock.timed(name, getattr(copies, name)))

    def clocked():
        clock.seconds, clock.calls = {}, {}
        one()
        return dict(clock.seconds)

    def lowest():
        runs = [clocked() for _ in range(options.steps)]
        return {name: 1e6 * min(run.get(name, 0.0) for run in runs) for name in runs[0]}

    times = lowest()
    of_copies = {f"{name}_us": round(times[name] / clock.calls[name], 2) for name in ("out", "into", "wait") if name in times}
    names = [str(line.function) for line in lines]
    for line, name in zip(lines, names, strict=True):
        line.function = clock.timed(name, line.function)
    calls = {name: spent for name, spent in lowest().items() if name in set(names)}
    kinds = [decision["decision"] for decision in bound.decisions.values()]
    rebuilt = times.get("rebuild", 0.0)
    figures = {
        "network": options.network, "device": options.device, "torch": torch.__version__, "share": options.share,
        "offloaded": kinds.count("offload"), "recomputed": kinds.count("recompute"), "packs": len(bound.answers), "reruns": len(lines),
        "plain_ms": plain, "fitted_ms": fitted, "forward_us": round(1e3 * (fitted[0] - plain[0]) / len(bound.answers), 2),
        "pack_us": round(times["pack"] / len(bound.answers), 2),
        "unpack_us": round((times["unpack"] - rebuilt) / max(1, len(bound.unpacks)), 2), "seal_us": round(times["seal"], 1),
        "rerun_us": round(rebuilt / max(1, len(lines)), 2), "call_us": round(sum(calls.values()) / max(1, len(lines)), 2),
        **of_copies,
        "by_operation": {name: [names.count(name), round(spent / names.count(name), 1)] for name, spent in calls.items()},
    }  # fmt: skip
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
