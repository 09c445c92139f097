#!/usr/bin/env python3
"""Other ways to use PyTorch, one after another in one process: one JSON line for each.

usage: [tightfit run .. --] python scripts/gpu_run/uses.py --label NAME [--seconds N] [USE ..]

Each takes steps for a number of seconds, under `tightfit run --report FILE` also until tuning has ended, but no longer than --most, then
times some. `loss` is the loss of the first step, and
`last` the loss of one more step on the same data and weights.
"""

import argparse
import time

import torch
from measure import milliseconds, tell
from models import build, loss_of
from report import Report


def trained(network, batch, precision, compiled=False):
    model, x, target = build(network, batch, precision)
    solver = torch.optim.SGD(model.parameters(), lr=0.0)
    run = torch.compile(model) if compiled else model

    def step(samples=batch):
        solver.zero_grad(set_to_none=True)
        loss = loss_of(run, x[:samples], target[:samples])
        loss.backward()
        solver.step()
        return loss

    return step


def compiled():
    """A model under torch.compile."""
    return trained("resnet18", 64, "tf32", compiled=True)


def autocast():
    """Autocast to half types, with a gradient scaler."""
    model, x, target = build("resnet18", 64, "fp32")
    solver = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cuda")

    def step():
        solver.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(model, x, target)
        scaler.scale(loss).backward()
        scaler.step(solver)
        scaler.update()
        return loss

    return step


def uneven():
    """Eight mini-batches of 64 and a last one of 17: a step is all of them."""
    step = trained("alexnet", 64, "fp32")

    def epoch():
        for _ in range(8):
            step()
        return step(17)

    return epoch


def inference():
    """Evaluation under no_grad."""
    model, x, target = build("resnet50", 64, "tf32")
    model.eval()

    @torch.no_grad()
    def step():
        return loss_of(model, x, target)

    return step


def two():
    """Two models one after the other."""
    first, second = trained("alexnet", 128, "fp32"), trained("resnet18", 32, "tf32")

    def step():
        first()
        return second()

    return step


USES = {"compiled": compiled, "autocast": autocast, "uneven": uneven, "inference": inference, "two": two}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("uses", nargs="*", default=list(USES))
    parser.add_argument("--label", default="plain")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--most", type=float, default=20)
    options = parser.parse_args()
    report = Report()
    for use in options.uses:
        begin = time.perf_counter()
        step = USES[use]()
        loss = step().item()
        first = time.perf_counter() - begin
        times, begin = [], time.perf_counter()
        while report.goes_on(time.perf_counter() - begin, options.seconds, options.most):
            before = time.perf_counter()
            step().item()
            times.append(time.perf_counter() - before)
        figures = {"step_ms": milliseconds(step, 20), "longest_step_ms": 1e3 * max(times), "first_step_s": first}
        tell(label=options.label, use=use, loss=loss, last=step().item(), **figures)
        del step
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
