#!/usr/bin/env python3
"""The largest picture or clip that decodes within a cap on PyTorch's memory, plain and under `tightfit run`.

usage: python scripts/gpu_run/largest.py CASE --tightfit PATH [--caps 8,16] [--workspace 64MiB]

CASE is imagedecoder:1:fp16 (the edge of a square picture grows) or videodecoder:1:bf16 (the number of frames of 256 x 256 pixels).
Prints a JSON line for each cap and way: the largest size that decodes, found without tuning, and after 13 s milliseconds
of a pass at that size and at the other way's, if that is smaller.
"""

import argparse
import json
import subprocess
import sys

# Of the latent: an image has eight times, a clip four times its edge.
UNITS = {"imagedecoder": 8, "videodecoder": 1}
FRAME = 64


def child(case, cap, sizes, seconds):
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
        low, unit = 8 * UNITS[network], UNITS[network]
        while fits(2 * low):
            low *= 2
        high = 2 * low
        # To about a thirty-second, in whole units.
        while high - low > max(unit, low // 32):
            middle = (low + high) // 2 // unit * unit
            low, high = (middle, high) if fits(middle) else (low, middle)
        found["largest"] = low
    for size in sizes:
        try:
            step = passes(size)
            begin = time.perf_counter()
            with torch.no_grad():
                while time.perf_counter() - begin < seconds:
                    step()
                    torch.cuda.synchronize()
                found[str(size)] = round(milliseconds(step, 5), 2)
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
    parser.add_argument("--child", nargs=3, metavar=("CAP", "SIZES", "SECONDS"))
    options = parser.parse_args()
    if options.child:
        cap, sizes, seconds = options.child
        child(options.case, float(cap), [int(size) for size in sizes.split(",") if size], float(seconds))
        return
    under = [options.tightfit, "run", "--workspace", options.workspace]

    def ask(way, *arguments):
        command = [*way, sys.executable, __file__, options.case, "--child", *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout else {}

    for cap in options.caps.split(","):
        ways = {"plain": [], f"run {options.workspace}": [*under, "--tune-budget", "0", "--"]}
        largest = {name: ask(way, cap, "", 0).get("largest") for name, way in ways.items()}
        sizes = sorted({size for size in largest.values() if size})
        for name, way in ways.items():
            here = [size for size in sizes if size <= (largest[name] or 0)]
            # A process for each size: the budget for tuning is a process's.
            times = {}
            for size in here:
                times |= ask([*under, "--"] if way else [], cap, size, 13 if way else 0)
            line = {"case": options.case, "cap_gib": float(cap), "way": name, "largest": largest[name], "pass_ms": times}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
