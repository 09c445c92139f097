#!/usr/bin/env python3
"""Prints what leaving engines out before they are set up would cost, by recorded profiles: none of them is a rule of `fit`.

usage: scripts/left-out.py PROFILE ..

For each kernel at its largest recorded size, in the order of the file: what would be left out because it took over so many times
the best on an earlier convolution of the same kind (operation, filters, strides, groups, types and layout), and how much slower the
best of the rest is. And how close the best comes to the bound of the device, the longer of the times for arithmetic and for
memory at the best rates that anything of the same types has reached in the profile. Little work is up to 10 GFLOP, where
setting up a compiled engine takes longer than running it.

    scripts/left-out.py profiles/recorded/h200-2026-11-21{,-more,-later}.jsonl.gz
"""

import collections
import gzip
import json
import re
import sys

LITTLE = 1e10
FACTORS = (2, 3, 5, 10)
# Fewer show nothing of a choice.
ALGORITHMS = 5


class Shape:
    def __init__(self, line):
        words = line.split()
        self.extents = {}
        for word in words[1:]:
            found = re.fullmatch(r"([a-z]+)([0-9]+)", word)
            if found and word not in ("f32", "f16", "tf32", "bf16"):
                self.extents[found[1]] = int(found[2])
        self.types = tuple(word for word in words if re.fullmatch(r"(tf32|f32|f16|bf16)(-f32)?", word))
        kind = [word for word in words if re.fullmatch(r"(r|s|stride|groups)[0-9x]+|nhwc", word)]
        self.kind = (words[0], *kind, *self.types)

    def of(self, name):
        return self.extents.get(name, 1)

    def work(self, samples):
        """Operations, and bytes of the three tensors."""
        c, h, w, k, r, s = map(self.of, "chwkrs")
        positions = h * w / self.of("stride") ** 2
        filters = k * c * r * s / self.of("groups")
        size = 4 if self.types[0] in ("f32", "tf32") else 2
        return 2 * samples * filters * positions, size * (samples * (c * h * w + k * positions) + filters)


def read(path):
    """The times of each algorithm, by problem and size."""
    times = collections.defaultdict(dict)
    with gzip.open(path, "rt") as lines:
        for line in map(json.loads, lines):
            if "algorithm" in line and not line["problem"].startswith("step "):
                for size, time, *_ in line["rows"]:
                    if time:
                        times[line["problem"], size][line["algorithm"]] = time
    return {key: of for key, of in times.items() if len(of) >= ALGORITHMS}


def similar(times, factor):
    """Measurements left out and in all, and how much slower the best of the rest is, for each kernel."""
    best, left_out, count, slower = {}, 0, 0, []
    for kind, of in times:
        lost = {name for name in of if name.startswith("engine") and best.get((kind, name), 0) > factor}
        rest = {name: time for name, time in of.items() if name not in lost}
        left_out, count = left_out + len(lost), count + len(of)
        if not rest:
            continue
        fastest = min(rest.values())
        slower.append(fastest / min(of.values()))
        for name, time in rest.items():
            best[kind, name] = min(best.get((kind, name), float("inf")), time / fastest)
    return left_out, count, slower


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    little, bounds = [], []
    for path in sys.argv[1:]:
        rates, largest = collections.defaultdict(lambda: [0.0, 0.0]), {}
        times = read(path)
        for (problem, size), of in times.items():
            shape, time = Shape(problem), min(of.values())
            for place, work in enumerate(shape.work(size)):
                rates[shape.types][place] = max(rates[shape.types][place], work / time)
        for (problem, size), of in times.items():
            shape = Shape(problem)
            work = shape.work(size)
            if work[0] <= LITTLE:
                bound = max(each / rate for each, rate in zip(work, rates[shape.types]))
                bounds.append(min(of.values()) / bound)
                if size > largest.get(problem, (0,))[0]:
                    largest[problem] = (size, shape.kind, of)
        little.append([(kind, of) for _, kind, of in largest.values()])
    print("| left out over | measurements left out | kernels over 1% slower | the slowest |")
    print("|---|---|---|---|")
    for factor in FACTORS:
        each = [similar(times, factor) for times in little]
        left_out, count = (sum(one[place] for one in each) for place in (0, 1))
        slower = [ratio for one in each for ratio in one[2]]
        over = sum(ratio > 1.01 for ratio in slower)
        print(f"| {factor}x | {left_out} of {count} | {over} of {len(slower)} | {max(slower):.2f} |")
    bounds.sort()
    at = [f"{bounds[int(len(bounds) * share)]:.1f}" for share in (0.1, 0.5, 0.9)]
    near = sum(ratio <= 1.3 for ratio in bounds)
    print(f"\nbest time over the bound: {', '.join(at)} at the 10th, 50th and 90th percentile; within 1.3: {near} of {len(bounds)}")


main()
