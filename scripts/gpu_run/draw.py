#!/usr/bin/env python3
"""Draws a report of `tightfit run` as SVG: each kernel's workspace as a bar, with its division written behind it. Kernels
that hold less than 1 MiB are counted, not drawn.

usage: scripts/gpu_run/draw.py REPORT.json TITLE [NAME ..] > FILE.svg

The report numbers convolutions of different shapes by their first call: conv1, conv2. NAMEs replace these, in that order.
"""

import json
import sys
from html import escape
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from dark_pages import DARK  # noqa: E402

COLORS = {"forward": "#4477aa", "backward-data": "#66ccee", "backward-filter": "#ee6677"}
ROW, WIDTH, RIGHT = 18, 420, 500
# The place that names have, at least, and for a letter.
LEFT, LETTER = 170, 6
MIB = float(1 << 20)


def division(configuration):
    """`4 x 64 engine3 + 10 algo`: equal neighbors together."""
    parts = []
    for part in configuration:
        word = (part["micro_batch"], part["algorithm"])
        if parts and parts[-1][1:] == word:
            parts[-1] = (parts[-1][0] + 1, *word)
        else:
            parts.append((1, *word))
    return " + ".join((f"{count} x " if count > 1 else "") + f"{size} {algorithm}" for count, size, algorithm in parts)


def label(kernel, names):
    """The layer and the operation."""
    number = kernel["name"].removeprefix("conv")
    named = names[int(number) - 1] if number.isdigit() and int(number) <= len(names) else kernel["name"]
    return f"{named} {kernel['operation']}"


def main():
    with open(sys.argv[1]) as file:
        every = [kernel for kernel in json.load(file)["kernels"] if kernel.get("ours")]
    kernels = [kernel for kernel in every if kernel["ours"]["workspace_bytes"] >= MIB]
    most = max((kernel["ours"]["workspace_bytes"] for kernel in kernels), default=1)
    total = sum(kernel["ours"]["workspace_bytes"] for kernel in every)
    labels = [label(kernel, sys.argv[3:]) for kernel in kernels]
    left = max(LEFT, *(LETTER * len(words) + 8 for words in labels))
    width, height = left + WIDTH + RIGHT, 60 + ROW * len(kernels)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">')
    print(DARK)
    print(f'<rect class="paper" width="{width}" height="{height}" fill="white"/>')
    print(f'<text x="10" y="20" font-size="14">{escape(sys.argv[2])}: {total / MIB:.0f} MiB in all, {len(every) - len(kernels)} more kernels with less than 1 MiB</text>')
    for place, (name, color) in enumerate(COLORS.items()):
        print(f'<rect x="{10 + 120 * place}" y="28" width="10" height="10" fill="{color}"/>')
        print(f'<text x="{24 + 120 * place}" y="37">{name}</text>')
    for place, (kernel, named) in enumerate(zip(kernels, labels)):
        ours, y = kernel["ours"], 50 + ROW * place
        size = ours["workspace_bytes"]
        length = WIDTH * size / most
        words = f"{size / MIB:.1f} MiB: {division(ours['configuration'])}"
        print(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(named)}</text>')
        print(f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{ROW - 5}" fill="{COLORS[kernel["operation"]]}"/>')
        print(f'<text x="{left + length + 6:.1f}" y="{y + 12}">{escape(words)}</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
