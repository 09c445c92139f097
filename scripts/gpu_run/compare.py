#!/usr/bin/env python3
"""How far two files of 32-bit numbers are apart: one JSON line.

usage: scripts/gpu_run/compare.py WANTED GOT [KEY=VALUE ..]     the pairs are repeated in the line
"""

import array
import json
import sys


def numbers(path):
    with open(path, "rb") as file:
        return array.array("f", file.read())


def main():
    wanted, got = map(numbers, sys.argv[1:3])
    if len(wanted) != len(got) or not wanted:
        raise SystemExit(f"{sys.argv[2]} has {len(got)} numbers, {sys.argv[1]} {len(wanted)}")
    largest = max(map(abs, wanted))
    # Not a number is no less than anything.
    apart = max((abs(a - b) if abs(a - b) < float("inf") else float("inf") for a, b in zip(wanted, got, strict=True)))
    pairs = dict(pair.split("=", 1) for pair in sys.argv[3:])
    print(json.dumps({**pairs, "numbers": len(wanted), "largest": largest, "apart": apart, "relative": apart / (largest or 1)}))


main()
