#!/usr/bin/env python3
"""Measures how long a step keeps the host, plain and within a budget, in turns. Prints a line of JSON for each model and share.

usage: scripts/fit-host.py [MODEL ..] [--shares 60 40] [--batch 8] [--steps 20] [--device cpu|cuda] [--size 224]

MODEL is a classifier of torchvision. With a mini-batch of 8, a GPU waits for its host, so these times are the host's. A CPU computes as well: there, use
--size 64. Shares are percents of the memory that plain needs. `host_ms` is the time until the step is queued, `step_ms` ends with the
device; both are medians, plain first. The budget bounds the allocator of the whole process, so the bound is lifted while plain steps run; the first steps
of each turn, which fill the allocator's cache, are not timed.
"""

import argparse
import copy
import json
import os
import statistics
import time

os.environ.setdefault("TIGHTFIT_QUIET", "1")

import tightfit.torch as tt
import torch
import torchvision
from tightfit._budget.api import session_of
from tightfit._budget.memory import allocator
from tightfit.errors import DoesNotFit

# Steps of each turn; the last one is timed.
TURN = 3
MODELS = "resnet50", "efficientnet_v2_s", "regnet_y_3_2gf", "densenet121"


def timed(model, optimizer, x):
    """Milliseconds until a step is queued, and until it is done."""
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    optimizer.step()
    queued = time.perf_counter()
    if x.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (queued - begin), 1e3 * (time.perf_counter() - begin)


class Plain:
    """The owner of the bound while plain steps run."""


def turn(model, optimizer, x, is_plain):
    """Some steps. Returns the times of the last one."""
    owner = Plain()
    if x.is_cuda:
        torch.cuda.empty_cache()
    if is_plain:
        allocator.enforce(1 << 50, x.device, owner)
    times = [timed(model, optimizer, x) for _ in range(TURN)][-1]
    if is_plain:
        if x.is_cuda:
            torch.cuda.empty_cache()
        allocator.release(owner)
    return times


def compare(name, share, options):
    torch.manual_seed(0)
    plain = torchvision.models.get_model(name, num_classes=1000).to(options.device).train()
    x = torch.randn(options.batch, 3, options.size, options.size, device=options.device)
    fitted = copy.deepcopy(plain)
    pairs = [(model, torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)) for model in (plain, fitted)]
    tt.fit(fitted, f"{share}%", optimizer=pairs[1][1])
    # The first passes of a plan are watched.
    for _ in range(3):
        for model, optimizer in pairs:
            turn(model, optimizer, x, model is plain)
    turns = [[turn(model, optimizer, x, model is plain) for model, optimizer in pairs] for _ in range(options.steps)]
    host, step = ([statistics.median(turn[side][kind] for turn in turns) for side in (0, 1)] for kind in (0, 1))
    counts = session_of(fitted).last.counts
    return {
        "model": name, "share": share, "batch": options.batch, "device": torch.cuda.get_device_name() if x.is_cuda else "cpu", "torch": torch.__version__,
        "host_ms": host, "step_ms": step, "over": step[1] / step[0] - 1, "packs": counts.packs, "calls": counts.calls, "fetched": counts.fetched,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--shares", type=int, nargs="+", default=[60, 40])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models:
        for share in options.shares:
            try:
                print(json.dumps(compare(name, share, options)), flush=True)
            except DoesNotFit as error:
                print(json.dumps({"model": name, "share": share, "error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
