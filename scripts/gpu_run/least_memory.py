#!/usr/bin/env python3
"""The least memory in which a training step still ends, and how long it then takes: one JSON line a case.

usage: [tightfit run .. --] python scripts/gpu_run/least_memory.py --label NAME [--caps 32,24,16] NETWORK:BATCH:PRECISION[:SIZE] ..

Under each cap (GiB, torch.cuda.set_per_process_memory_fraction) a fresh step is tried, twice; the line says what each gave:
milliseconds of the second step, or the error's first words.
"""

import argparse
import time

import torch
from measure import GIB, tell
from models import build, loss_of


def attempt(model, x, target):
    """Milliseconds of the second of two steps, or what went wrong."""
    try:
        for _ in range(2):
            begin = time.perf_counter()
            model.zero_grad(set_to_none=True)
            loss_of(model, x, target).backward()
            torch.cuda.synchronize()
        return round(1e3 * (time.perf_counter() - begin), 1)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return str(error).split(".")[0][:60]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--label", default="plain")
    parser.add_argument("--caps", default="64,48,40,32,28,24,20,18,16,14,12,10,8")
    parser.add_argument("--benchmark", action="store_true")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = options.benchmark
    whole = torch.cuda.get_device_properties(0).total_memory
    for case in options.cases:
        network, batch, precision, *size = case.split(":")
        given = {}
        for cap in map(float, options.caps.split(",")):
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap * GIB / whole))
            try:
                model, x, target = build(network, int(batch), precision, size=int(size[0]) if size else None)
                given[f"{cap:g}"] = attempt(model, x, target)
            except torch.OutOfMemoryError:
                given[f"{cap:g}"] = "out of memory before the first step"
            model = x = target = None
            torch.cuda.empty_cache()
            if isinstance(given[f"{cap:g}"], str):
                break
        torch.cuda.set_per_process_memory_fraction(1.0)
        tell(label=options.label, case=case, benchmark=options.benchmark, step_ms_by_cap_gib=given)


if __name__ == "__main__":
    main()
