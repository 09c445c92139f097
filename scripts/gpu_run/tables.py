#!/usr/bin/env python3
"""Turns what scripts/gpu-run.sh wrote into the tables of docs/results.md. Needs no GPU.

usage: scripts/gpu_run/tables.py FILE.jsonl ..
"""

import json
import sys

COLUMNS = {
    "label": "run",
    "benchmark": "benchmark",
    "first_step_s": "first step [s]",
    "step_ms": "step [ms]",
    "convolutions_ms": "convolutions [ms]",
    "torch_peak_gib": "torch peak [GiB]",
    "driver_peak_gib": "driver peak [GiB]",
}


def text(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:.1f}"
    return "-" if value is None else str(value)


def main():
    lines = []
    for name in sys.argv[1:]:
        with open(name) as file:
            lines += [json.loads(line) for line in file if line.startswith("{")]
    cases = list(dict.fromkeys(line.get("case", line.get("precision", "-")) for line in lines))
    for case in cases:
        rows = [line for line in lines if line.get("case", line.get("precision", "-")) == case]
        known = [name for name in COLUMNS if any(name in row for row in rows)]
        others = [n for n in dict.fromkeys(n for row in rows for n in row) if n not in COLUMNS and not n.startswith("first_")]
        names = known + [name for name in others if name not in ("case", "precision")]
        print(f"\n{case}\n\n| {' | '.join(COLUMNS.get(name, name) for name in names)} |\n|{'---|' * len(names)}")
        for row in rows:
            print(f"| {' | '.join(text(row.get(name)) for name in names)} |")


if __name__ == "__main__":
    main()
