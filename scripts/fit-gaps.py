#!/usr/bin/env python3
"""The bytes that PyTorch's allocator would reserve for a recorded step within a budget, and decisions for which it has room. Needs no GPU.

usage: scripts/fit-gaps.py STEP BYTES ..

STEP is a step file, as scripts/gpu-fit.sh writes them into OUTPUT/steps, or compressed (.gz). Prints a row for each budget: the allocated and
reserved bytes and the cost of decisions that look at allocated bytes alone, then of decisions that leave room for gaps between blocks.
"""

import argparse
import gzip
import json
import pathlib

import torch
from tightfit._budget.memory.allocator import most_reserved, slack_of
from tightfit._budget.plan.decide import decide
from tightfit._budget.plan.liveness import Lives
from tightfit._budget.plan.reserved import reserved, with_gaps

GIB = 2**30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", type=pathlib.Path)
    parser.add_argument("budgets", type=int, nargs="+", metavar="BYTES")
    options = parser.parse_args()
    text = options.step.read_bytes()
    step = json.loads(gzip.decompress(text) if options.step.suffix == ".gz" else text)
    lives, gpu = Lives(step), torch.device("cuda")
    print("| budget | allocated | reserved | over plain | allocated, with room for gaps | reserved | over plain |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for budget in options.budgets:
        aim = budget - slack_of(budget, gpu)
        decided = decide(step, aim, lives, hurried=True)
        if not decided.fits:
            print(f"| {budget / GIB:.2f} GiB | least {decided.outcome.peak / GIB:.2f} GiB |")
            continue
        row = [f"{budget / GIB:.2f} GiB"]
        for found in (decided, with_gaps(step, aim, lives, decided, most_reserved(budget))):
            sizes = found.outcome.peak, reserved(lives, found.decisions).bytes
            row += [*(f"{size / GIB:.2f} GiB" for size in sizes), f"{100 * (found.outcome.time_us / found.plain.time_us - 1):.1f}%"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
