#!/usr/bin/env python3
"""How far two files of 32-bit numbers are apart: one JSON line.

usage: scripts/gpu_run/compare.py WANTED GOT [KEY=VALUE ..]     the pairs are repeated in the line
"""

import json
import pathlib
import sys

import torch


def numbers(path):
    return torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.float32)


def main():
    wanted, got = map(numbers, sys.argv[1:3])
    if len(wanted) != len(got) or not len(wanted):
        raise SystemExit(f"{sys.argv[2]} has {len(got)} numbers, {sys.argv[1]} {len(wanted)}")
    largest = wanted.abs().max().item()
    # Not a number is no less than anything.
    apart = (wanted - got).abs().nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()
    pairs = dict(pair.split("=", 1) for pair in sys.argv[3:])
    print(json.dumps({**pairs, "numbers": len(wanted), "largest": largest, "apart": apart, "relative": apart / (largest or 1)}))


main()
