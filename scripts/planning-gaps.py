#!/usr/bin/env python3
"""Proven gaps and planning times of the joint plan, with assumed rates of an H200: the table of docs/results.md.

usage: scripts/planning-gaps.py [TIGHTFIT]

Budgets are shares of what everything resident takes without workspaces. A time is that of a whole command.
"""

import json
import statistics
import subprocess
import sys
import time

NETWORKS = [
    ("vgg16", 256, "f32"),
    ("resnet50", 256, "f32"),
    ("resnet50", 256, "tf32"),
    ("resnet50", 256, "bf16"),
    ("googlenet", 128, "f32"),
    ("densenet121", 64, "f32"),
    ("resnet152", 64, "f32"),
    ("densenet201", 64, "f32"),
]
SHARES = (80, 60, 40, 25)


def planned(command, *options):
    return json.loads(subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True).stdout)


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    tightfit = sys.argv[1] if len(sys.argv) > 1 else "target/release/tightfit"
    gaps = []
    print("| network, mini-batch, types | " + " | ".join(f"{share}%" for share in SHARES) + " |")
    print("| --- |" + " ---: |" * len(SHARES))
    for network, batch, types in NETWORKS:
        command = [tightfit, "plan", network, "--batch", str(batch), "--types", types, "--assume", "--format", "json"]
        peak = planned(command, "--policy", "baseline", "--algorithms", "memory")["peak_bytes"]
        cells = [f"{network}, {batch}, {types}"]
        for share in SHARES:
            begin = time.perf_counter()
            gap = planned(command, "--budget", str(peak // 100 * share))["gap"]
            took = time.perf_counter() - begin
            gaps.append(gap)
            cells.append(f"{'no bound' if gap is None else f'{100 * gap:.1f}%'} in {took:.1f} s")
        print("| " + " | ".join(cells) + " |", flush=True)
    known = [gap for gap in gaps if gap is not None]
    print(f"\nmedian {100 * statistics.median(known):.1f}%, worst {100 * max(known):.1f}%, of {len(known)} of {len(gaps)} plans with a bound")


if __name__ == "__main__":
    main()
