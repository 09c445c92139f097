#!/usr/bin/env python3
"""Writes the instances of `benches/instances`: fronts of many kernels and totals to allot among them.

Time falls roughly exponentially with workspace, with noise; beaten points are dropped. One file a shape, gzipped text:

    instance NAME          ten per file, one per seed
    front W:T W:T ..       bytes and nanoseconds of a kernel's points, by rising workspace
    kernels F F F ..       the front of every kernel, counted from 0
    totals M M M           5, 25 and 60 % of the sum of the largest workspaces

The same Python gives the same files: run it from the repository root to see that nothing changes.
"""

import gzip
import math
import pathlib
import random

SEEDS = 10
FOLDER = pathlib.Path("benches/instances")


def front(rng, size):
    """A front of exactly `size` points, in multiples of 512 bytes."""
    largest = int(2 ** rng.uniform(22, 29))  # 4 MiB to 512 MiB
    slowest = rng.uniform(2e5, 2e7)  # 0.2 to 20 ms
    floor, rate = rng.uniform(0.2, 0.7), rng.uniform(2, 8)
    points = set()
    while True:
        share = rng.random() if points else 0.0
        time = slowest * (floor + (1 - floor) * math.exp(-rate * share)) * rng.uniform(1, 1.05)
        points.add((int(share * largest) // 512 * 512, int(time)))
        kept = []
        for workspace, nanos in sorted(points):
            if not kept or nanos < kept[-1][1]:
                kept.append((workspace, nanos))
        if len(kept) >= size:
            first, *others = kept
            return [first] + sorted(rng.sample(others, size - 1))


def shape(name, kernels, sizes, templates=None):
    """Ten instances of `kernels` kernels; with `templates`, only this number differs, as in networks of repeated blocks."""
    lines = []
    for seed in range(SEEDS):
        rng = random.Random(f"{name} {seed}")
        count = templates or kernels
        fronts = [front(rng, size) for size in sizes(rng, count)]
        uses = [rng.randrange(count) if templates else kernel for kernel in range(kernels)]
        largest = sum(fronts[use][-1][0] for use in uses)
        lines.append(f"instance {name}-{seed}")
        lines += ["front " + " ".join(f"{w}:{t}" for w, t in points) for points in fronts]
        lines.append("kernels " + " ".join(map(str, uses)))
        lines.append("totals " + " ".join(str(largest * percent // 100) for percent in (5, 25, 60)))
    text = ("\n".join(lines) + "\n").encode()
    # No name and no time in the header, so that equal text gives equal files.
    with open(FOLDER / f"{name}.txt.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(text)


def summing_to(total):
    """Sizes from 1 on that add up to `total`, uneven as the fronts of a network are."""

    def sizes(rng, count):
        sizes = [1] * count
        for _ in range(total - count):
            sizes[rng.randrange(count)] += 1
        return sizes

    return sizes


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    shape("15x40", 15, lambda rng, count: [40] * count)
    shape("159x562", 159, summing_to(562))
    shape("159-repeated", 159, summing_to(78), templates=22)
    shape("465x20", 465, lambda rng, count: [20] * count)
    shape("465x20-repeated", 465, lambda rng, count: [20] * count, templates=40)


if __name__ == "__main__":
    main()
