#!/usr/bin/env python3
"""The largest picture or clip that decodes within a cap on PyTorch's memory, plain and under `tightfit run`.

usage: python scripts/gpu_run/largest.py CASE --tightfit PATH [--caps 8,16] [--workspace 64MiB] [--start SIZE]

CASE is imagedecoder:1:fp16 (the edge of a square picture grows) or videodecoder:1:bf16 (the number of frames of 256 x 256 pixels).
Prints a JSON line for each cap and way: the largest size (of the latent) that decodes, found without tuning from SIZE on, or for the second way
from the first one's, and after 13 s milliseconds of a pass at that size and at the other way's, if that is smaller: the median of five, or one of over a second.
"""

import argparse
import json
import subprocess
import sys

# Of the latent: an image has eight times, a clip four times its edge.
UNITS = {"imagedecoder": 8, "videodecoder": 1}
FRAME = 64
# A pass that takes so many seconds is timed once.
SLOW = 1.0


def search(fits, start, unit):
    """The largest size that fits, to about a thirty-second: in growing steps from the start, then by halves."""
    step = max(unit, start // 32 // unit * unit)
    low = high = start
    if fits(start):
        while fits(high := low + step):
            low, step = high, 2 * step
    else:
        while low > unit and not fits(low := max(unit, high - step)):
            high, step = low, 2 * step
    while high - low > max(unit, low // 32):
        middle = (low + high) // 2 // unit * unit
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def child(case, cap, start, sizes, seconds):
    """Within the cap, times a pass at each of the sizes, or with none finds the largest."""
    import time

    import torch
    from measure import GIB, milliseconds
    from models import build

    torch.cuda.set_per_process_memory_fraction(cap * GIB / torch.cuda.get_device_properties(0).total_memory)
    network, batch, precision = case.split(":")
    model, x, _ = build(network, int(batch), precision)
    channels, form = x.shape[1], torch.channels_last_3d if x.dim() == 5 else torch.channels_last

    def passes(size):
        shape = (size, size) if network == "imagedecoder" else (size, FRAME, FRAME)
        sample = torch.randn(int(batch), channels, *shape, dtype=x.dtype, device="cuda")
        sample = sample.to(memory_format=form) if precision == "bf16" else sample
        with torch.no_grad():
            model(sample)
            torch.cuda.synchronize()
        return lambda: model(sample)

    def fits(size):
        try:
            passes(size)
        except (RuntimeError, torch.OutOfMemoryError):
            return False
        finally:
            torch.cuda.empty_cache()
        return True

    found = {}
    if not sizes:
        unit = UNITS[network]
        found["largest"] = search(fits, start or 8 * unit, unit)
    for size in sizes:
        try:
            step = passes(size)
            begin = last = time.perf_counter()
            with torch.no_grad():
                while (now := time.perf_counter()) - begin < seconds:
                    last = now
                    step()
                    torch.cuda.synchronize()
                slow = now - last > SLOW
                found[str(size)] = round(milliseconds(step, 1 if slow else 5, 0 if slow else 3), 2)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            found[str(size)] = str(error).split(".")[0][:80]
        step = None
        torch.cuda.empty_cache()
    print(json.dumps(found), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--tightfit")
    parser.add_argument("--caps", default="8,16")
    parser.add_argument("--workspace", default="64MiB")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--child", nargs=4, metavar=("CAP", "START", "SIZES", "SECONDS"))
    options = parser.parse_args()
    if options.child:
        cap, start, sizes, seconds = options.child
        child(options.case, float(cap), int(start), [int(size) for size in sizes.split(",") if size], float(seconds))
        return
    under = [options.tightfit, "run", "--workspace", options.workspace]

    def ask(way, *arguments):
        command = [*way, sys.executable, __file__, options.case, "--child", *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout else {}

    for cap in options.caps.split(","):
        ways = {"plain": [], f"run {options.workspace}": [*under, "--tune-budget", "0", "--"]}
        largest, start = {}, options.start
        for name, way in ways.items():
            largest[name] = ask(way, cap, start, "", 0).get("largest")
            start = largest[name] or start
            print(f"{cap} GiB, {name}: {largest[name]}", file=sys.stderr, flush=True)
        sizes = sorted({size for size in largest.values() if size})
        for name, way in ways.items():
            here = [size for size in sizes if size <= (largest[name] or 0)]
            # A process for each size: the budget for tuning is a process's.
            times = {}
            for size in here:
                times |= ask([*under, "--"] if way else [], cap, 0, size, 13 if way else 0.1)
            line = {"case": options.case, "cap_gib": float(cap), "way": name, "largest": largest[name], "pass_ms": times}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
