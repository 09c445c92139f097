#!/usr/bin/env python3
"""Converts raw recordings of a device (one JSON object a line, gzip) into tightfit profiles.

usage: scripts/convert-recorded.py RECORDINGS LAYERS OUTPUT

RECORDINGS is a folder with legacy-*.jsonl.gz (every algorithm of cuDNN's legacy convolution API: layer `l`, operation
`op`, micro-batch `n`, algorithm number `a`, workspace `ws`, milliseconds `ms` or null, types `dt`) and
backend-plans.jsonl.gz (every plan of the backend API's heuristics: types `p`, layout `lay`, plan name `nm`).
LAYERS is a folder of layer lists: name n c h w k r s pad_h pad_w stride_h stride_w dilation groups.
OUTPUT receives the profiles. docs/cache-format.md describes their format.
"""

import gzip
import json
import pathlib
import sys

OPERATIONS = ["forward", "backward-data", "backward-filter"]
# In the raw files f16 is 16-bit data with 32-bit sums, f16h is 16 bits throughout.
TYPES = {"f32": "f32", "tf32": "tf32", "f16": "f16-f32", "f16h": "f16"}
FORWARD = ["implicit-gemm", "implicit-precomp-gemm", "gemm", "direct", "fft", "fft-tiling", "winograd", "winograd-nonfused"]
BACKWARD_DATA = ["algo-0", "algo-1", "fft", "fft-tiling", "winograd", "winograd-nonfused"]
BACKWARD_FILTER = ["algo-0", "algo-1", "fft", "algo-3", "winograd", "winograd-nonfused", "fft-tiling"]
ALGORITHMS = [FORWARD, BACKWARD_DATA, BACKWARD_FILTER]
NOTES = {"tensor-core": 1, "fft": 8, "winograd": 16, "nondeterministic": 32}
NONDETERMINISTIC = {(1, "algo-0"), (2, "algo-0"), (2, "algo-3")}
DEVICE = {"backend": "cuda", "name": "NVIDIA H200", "library": "cudnn 9.19.0", "threads": 0}

# Which raw files go into which profile; the second word keeps only layers whose name begins with it.
PROFILES = {
    "h200-legacy-alexnet-1col-all": [("legacy-alexnet1col-all-f32", "")],
    "h200-legacy-alexnet": [("legacy-pow2", "alexnet")],
    "h200-legacy-vgg16": [("legacy-pow2", "vgg16")],
    "h200-legacy-deepbench": [("legacy-pow2", "db")],
    "h200-legacy-resnet18": [("legacy-resnet18-pow2-f32", "")],
    "h200-legacy-resnet50": [("legacy-resnet50-pow2-f32", "")],
    "h200-backend": [("backend-plans", "")],
}


def per_axis(word, values, default):
    if all(value == default for value in values):
        return ""
    text = str(values[0]) if values[0] == values[1] else f"{values[0]}x{values[1]}"
    return f" {word}{text}"


def shapes(folder):
    """The convolution of each layer in tightfit's text form. DeepBench's lists differ in n alone."""
    found = {}
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text().splitlines():
            name, *numbers = line.split()
            _, c, h, w, k, r, s, pad_h, pad_w, stride_h, stride_w, dilation, groups = map(int, numbers)
            text = f"c{c} h{h} w{w} k{k} r{r} s{s}"
            text += per_axis("pad", [pad_h, pad_w], 0)
            text += per_axis("stride", [stride_h, stride_w], 1)
            text += per_axis("dilation", [dilation, dilation], 1)
            text += f" groups{groups}" if groups > 1 else ""
            found[name] = text
    return found


def legacy(row):
    """Types, layout, algorithm and notes of a row of the legacy recordings."""
    name = ALGORITHMS[row["op"]][row["a"]]
    notes = NOTES["fft"] * name.startswith("fft") + NOTES["winograd"] * name.startswith("winograd")
    notes += NOTES["nondeterministic"] * ((row["op"], name) in NONDETERMINISTIC)
    return TYPES[row["dt"]], "nchw", f"legacy:{name}", notes


def backend(row):
    """Types, layout, algorithm and notes of a row of the backend plans: eng28_k2=4_k3=0 becomes engine28:k2=4,k3=0."""
    engine, *knobs = row["nm"].split("_")
    name = "engine" + engine.removeprefix("eng") + (":" + ",".join(knobs) if knobs else "")
    return TYPES[row["p"]], row["lay"], name, 0


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    recordings, layers, output = map(pathlib.Path, sys.argv[1:])
    shape = shapes(layers)
    for profile, sources in PROFILES.items():
        problems = {}
        for source, prefix in sources:
            read = backend if source == "backend-plans" else legacy
            for line in gzip.open(recordings / f"{source}.jsonl.gz", "rt"):
                row = json.loads(line)
                if not row["l"].startswith(prefix):
                    continue
                types, layout, algorithm, notes = read(row)
                problem = f"{OPERATIONS[row['op']]} {shape[row['l']]} {types}" + (" nhwc" if layout == "nhwc" else "")
                kept = problems.setdefault((problem, algorithm, notes), {})
                time = None if row["ms"] is None else round(row["ms"] * 1e6)
                before = kept.get(row["n"])
                # Several layers may have one shape: the faster recording stands.
                if before is None or (time is not None and (before[0] is None or time < before[0])):
                    kept[row["n"]] = (time, row["ws"])
        lines = [{"format": "tightfit-profile", "version": 1}, {"device": DEVICE}]
        for (problem, algorithm, notes), rows in sorted(problems.items()):
            # The raw recordings give the median of 3 to 5 runs and no spread.
            rows = [[n, time, ws, 0.0, 3, time] for n, (time, ws) in sorted(rows.items())]
            lines.append({"problem": problem, "algorithm": algorithm, "notes": notes, "rows": rows})
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        with open(output / f"{profile}.jsonl.gz", "wb") as file:
            file.write(gzip.compress(text.encode(), 9, mtime=0))
        print(profile, len(problems), "candidates")


main()
