#!/usr/bin/env python3
"""How far two files of 32-bit numbers are apart, and cuDNN's answers to the tests' C program: one JSON line.

usage: scripts/gpu_run/compare.py WANTED GOT TOLD REPORT [KEY=VALUE ..]

TOLD is the program's output. REPORT is the report of `tightfit run`; a plain run has no such file. The pairs are repeated in the line.
"""

import json
import pathlib
import sys

import numpy

# cuDNN's numbers of algorithms.
NAMES = {
    "forward": ["implicit-gemm", "implicit-precomp-gemm", "gemm", "direct", "fft", "fft-tiling", "winograd", "winograd-nonfused"],
    "data": ["algorithm 0", "algorithm 1", "fft", "fft-tiling", "winograd", "winograd-nonfused"],
    "filter": ["algorithm 0", "algorithm 1", "fft", "algorithm 3", "winograd", "winograd-nonfused", "fft-tiling"],
}


def numbers(path):
    return numpy.fromfile(path, dtype=numpy.float32)


def told(text, operation):
    """The first of the algorithms that cuDNN listed."""
    listed = next(line.split()[1:] for line in text.splitlines() if line.startswith("listed"))
    milliseconds = float(listed[3])
    return {
        "algorithm": NAMES[operation][int(listed[0])],
        "workspace_bytes": int(listed[2]),
        "ms": milliseconds if milliseconds > 0 else None,
    }


def ran(report):
    """The configuration of a convolution that the library divided or replaced."""
    [kernel] = report["kernels"]
    if kernel["decision"] not in ("divided", "replaced"):
        return {}
    parts = kernel["ours"]["configuration"]
    sizes = [part["micro_batch"] for part in parts]
    words = f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else " + ".join(map(str, sizes))
    algorithms = " + ".join(dict.fromkeys(part["algorithm"] for part in parts))
    return {"configuration": {"parts": words, "algorithm": algorithms, "workspace_bytes": kernel["ours"]["workspace_bytes"]}}


def main():
    wanted, got = map(numbers, sys.argv[1:3])
    if len(wanted) != len(got) or not len(wanted):
        raise SystemExit(f"{sys.argv[2]} has {len(got)} numbers, {sys.argv[1]} {len(wanted)}")
    largest = float(numpy.abs(wanted).max())
    # NaN counts as an infinite difference.
    apart = float(numpy.nan_to_num(numpy.abs(wanted - got), nan=numpy.inf).max())
    pairs = dict(pair.split("=", 1) for pair in sys.argv[5:])
    line = {**pairs, "numbers": len(wanted), "largest": largest, "apart": apart, "relative": apart / (largest or 1)}
    line["told"] = told(pathlib.Path(sys.argv[3]).read_text(), pairs["operation"])
    report = pathlib.Path(sys.argv[4])
    print(json.dumps(line | (ran(json.loads(report.read_text())) if report.is_file() else {})))


main()
