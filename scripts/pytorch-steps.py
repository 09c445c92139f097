#!/usr/bin/env python3
"""Draws the guide's picture of unmodified PyTorch from the lines of docs/measured, and prints its numbers.

usage: scripts/pytorch-steps.py [--output docs/pictures/pytorch-steps.svg]

Each row is a network with its types: the time of a step under `tightfit run` (sizes `fit`, all measured first) over plain PyTorch's. There are steps
without any limit, with 64 MiB of workspace per kernel (stages table5 and precisions), and VGG-16 with 512 MiB (stage vgg). A mark is PyTorch with its
own benchmark, over the plain one of the same run (stages vgg and benchmarks). Only the ratios are computed.
"""

import argparse
import re
from html import escape
from pathlib import Path

import measured_lines
from dark_pages import DARK
from paper_tables.measured import MEASURED, table_5_steps

ROOT = Path(__file__).resolve().parents[1]
# Okabe and Ito 2008: color-blind safe.
RUN, BENCHMARK, SLOWER = "#0072B2", "#E69F00", "#D55E00"
LEFT, WIDTH, ROW, TOP = 210, 420, 22, 70


def milliseconds(cell):
    """The time of a step in a cell such as `28.0 (22.7)` or `424 ms`; None without one."""
    found = re.match(r"\*{0,2}([0-9.]+)", cell)
    return float(found[1]) if found else None


def benchmarks(lines):
    """For each (network, types): the steps of plain PyTorch with its own benchmark and without."""
    steps = {(line["case"], line["benchmark"]): line["step_ms"] for line in lines}
    names = {"alexnet": "AlexNet", "resnet18": "ResNet-18", "resnet50": "ResNet-50", "densenet40": "DenseNet-40"}
    found = {}
    for (case, benchmark), step in steps.items():
        network, batch, types = case.split(":")
        if benchmark:
            found[f"{names[network]} b{batch}", types] = step, steps[case, False]
    return found


def measured(marks):
    """Every (network, types, plain, under run, (benchmark, plain of the same run)) with both times, in the order of the tables."""
    found = []
    printed = {}
    for line in measured_lines.read(MEASURED / "results-printed.jsonl"):
        printed.setdefault(line["table"], []).append(line["row"])
    vgg = {(row["run"], row["`cudnn.benchmark`"]): milliseconds(row["step"]) for row in printed["vgg"]}
    plain = vgg["plain", "off"]
    found.append(("VGG-16 b256, 512 MiB", "fp32", plain, vgg["first run", "off"], (vgg["plain", "on"], plain)))
    for name, steps in table_5_steps().items():
        network = name.split(",")[0]
        found.append((network, "fp32", steps["plain"]["step_ms"], steps["fit"]["step_ms"], marks.get((network, "fp32"))))
    for row in printed["tensor-cores"]:
        plain, run = milliseconds(row["plain, no limit"]), milliseconds(row["fit"])
        if plain and run:
            name, types = row["network"].split(",")[0], row["types"].split(",")[0]
            found.append((name, types, plain, run, marks.get((name, types))))
    order = ["fp32", "tf32", "bf16"]
    return sorted((row for row in found if row[1] in order), key=lambda row: order.index(row[1]))


def picture(found):
    """An SVG with a bar for each row."""
    height = TOP + ROW * len(found) + 56
    scale = WIDTH / 1.25
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 150} {height}" font-family="sans-serif" font-size="12">',
        DARK,
        f'<rect class="paper" width="{LEFT + WIDTH + 150}" height="{height}" fill="#ffffff"/>',
        '<text x="16" y="22" font-size="15">Time per step of unmodified PyTorch 2.11 on an H200, plain = 1</text>',
        f'<rect x="16" y="36" width="12" height="12" fill="{RUN}"/><text x="34" y="46">tightfit run</text>',
        f'<rect x="126" y="36" width="12" height="12" fill="{SLOWER}"/><text x="144" y="46">tightfit run, slower than plain</text>',
        f'<rect x="346" y="36" width="12" height="12" fill="{BENCHMARK}"/><text x="364" y="46">plain with cudnn.benchmark</text>',
    ]
    for index, (network, types, plain, run, benchmark) in enumerate(found):
        y = TOP + ROW * index
        ratio = run / plain
        color = RUN if ratio <= 1 else SLOWER
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(network)}, {types}</text>')
        title = f"{network}, {types}: {run:g} ms, plain {plain:g} ms"
        parts.append(
            f'<rect x="{LEFT}" y="{y + 2}" width="{ratio * scale:.1f}" height="{ROW - 7}" fill="{color}"><title>{escape(title)}</title></rect>'
        )
        if benchmark:
            step, beside = benchmark
            at = LEFT + step / beside * scale
            title = f"cudnn.benchmark: {step:g} ms, plain {beside:g} ms in the same run"
            parts.append(
                f'<rect x="{at - 2:.1f}" y="{y}" width="4" height="{ROW - 3}" fill="{BENCHMARK}"><title>{title}</title></rect>'
            )
        parts.append(f'<text x="{LEFT + WIDTH + 12}" y="{y + 13}">{plain:g} to {run:g} ms</text>')
    bottom = TOP + ROW * len(found)
    for share in (0, 0.25, 0.5, 0.75, 1, 1.25):
        x = LEFT + share * scale
        color, width = ("#000000", 1.5) if share == 1 else ("#dddddd", 1)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="{color}" stroke-width="{width}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{share:g}</text>')
    parts.append(
        f'<text x="16" y="{bottom + 38}">64 MiB of workspace per kernel unless named, all measured first; plain has no limit. Lower is better.</text>'
    )
    return "\n".join(parts + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/pictures/pytorch-steps.svg")
    options = parser.parse_args()
    marks = benchmarks(measured_lines.read(MEASURED / "benchmarks.jsonl"))
    found = measured(marks)
    for network, types, plain, run, benchmark in found:
        print(network, types, plain, run, *(benchmark or []), sep="\t")
    options.output.write_text(picture(found))


if __name__ == "__main__":
    main()
