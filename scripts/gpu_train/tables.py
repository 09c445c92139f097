#!/usr/bin/env python3
"""Prints the tables of docs/results.md from what scripts/gpu-train.sh measured.

usage: scripts/gpu_train/tables.py gpu-train.jsonl .. [peers.jsonl ..]

For each network one line a variant: step, share of the oracle's speed (feature extraction layers, whole step), planned step,
arena, bytes to the host; then PyTorch's.
"""

import json
import sys

GIB = float(1 << 30)
PYTORCH = {"plain": "PyTorch plain", "checkpoint": "PyTorch, checkpoints", "save_on_cpu": "PyTorch, save_on_cpu, pinned"}


def read(paths):
    lines = []
    for path in paths:
        with open(path) as file:
            lines += map(json.loads, file)
    return lines


def main():
    lines = read(sys.argv[1:])
    for case in dict.fromkeys(line["case"] for line in lines if ":" in line["case"]):
        own = [line for line in lines if line["case"] == case]
        oracle = next((line for line in own if line.get("variant") == "oracle"), None)
        print(f"\n| {case} | step [ms] | of the oracle, features | whole step | planned [ms] | arena [GiB] | to the host [GiB] |")
        print("|---" * 7 + "|")
        seen = set()
        for line in own:
            name = line.get("variant", "")
            if "step_us" not in line or name == "copies":
                continue
            name += ", whole card" if line["whole"] and name != "oracle" else ""
            if name in seen:
                print(f"{case}: {name} was measured more than once; the first is shown", file=sys.stderr)
                continue
            seen.add(name)
            share = ["-", "-"]
            if oracle:
                share = [f"{oracle[key] / line[key]:.2f}" for key in ("features_us", "step_us")]
            times = [f"{line[key] / 1e3:.1f}" for key in ("step_us", "planned_us")]
            sizes = [f"{line[key] / GIB:.2f}" for key in ("arena_bytes", "offloaded_bytes")]
            print("| " + " | ".join([name, times[0], *share, times[1], *sizes]) + " |")
        for line in own:
            if line.get("way"):
                step = f"{line['step_ms']:.1f}" if line.get("step_ms") else line.get("failed", "failed")
                sizes = " / ".join(f"{line[key] / GIB:.2f}" for key in ("peak_bytes", "reserved_bytes") if line.get(key))
                print(f"| {PYTORCH[line['way']]} | {step} | | | | {sizes} | |")
        for line in own:
            if "refused" in line:
                print(f"{line['variant']}: refused, {line['refused']}")
            if "least_bytes" in line and "engine_refuses_less" in line:
                print(f"{line['variant']}: {line['least_bytes']} fit, less refused by planner {line['planner_refuses_less']}, "
                      f"engine {line['engine_refuses_less']}")
    runs = [line for line in lines if line.get("touched_bytes") is not None]
    equal = sum(line["touched_bytes"] == line["arena_bytes"] for line in runs)
    above = sum(line["touched_bytes"] > line["arena_bytes"] for line in runs)
    print(f"\ntouched as planned in {equal} of {len(runs)} runs, above it in {above}")


main()
