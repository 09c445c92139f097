#!/usr/bin/env python3
"""Draws time over everything resident against memory for the plans in docs/measured/joint.jsonl, with PyTorch's ways of the same run.

usage: scripts/joint-picture.py [PICTURE.svg]        docs/pictures/joint-plan.svg by default

PyTorch's overheads are over its own plain step.
"""

import pathlib
import sys
from html import escape

import measured_lines
from dark_pages import DARK

ROOT = pathlib.Path(__file__).parents[1]
WAYS = {"plain": "PyTorch", "checkpoint": "PyTorch, checkpoints", "save_on_cpu": "PyTorch, save_on_cpu"}
# Okabe and Ito 2008: color-blind safe.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
LEFT, TOP, WIDTH, HEIGHT = 60, 40, 520, 300
# Points with more percent, or more tenths of the memory, are left out.
MOST, WIDEST = 60, 13


def picture(curves):
    """An SVG: budgets as connected dots, PyTorch's ways as crosses."""
    right, bottom = LEFT + WIDTH, TOP + HEIGHT

    def at(share, over):
        return LEFT + WIDTH * share / (WIDEST / 10), bottom - HEIGHT * over / MOST

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 190} {bottom + 60}" font-family="sans-serif" font-size="12">',
        DARK,
        f'<rect class="paper" width="{right + 190}" height="{bottom + 60}" fill="#ffffff"/>',
        f'<text x="16" y="22" font-size="15">Time and memory of a training step on an H200</text>',
    ]
    for over in range(0, MOST + 1, 10):
        _, y = at(0, over)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">+{over}%</text>')
    for tenths in range(0, WIDEST + 1, 2):
        x, _ = at(tenths / 10, 0)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tenths * 10}%</text>')
    axes = "memory over that of plain PyTorch in the same run; time over everything resident"
    parts.append(f'<text x="{LEFT}" y="{bottom + 40}">{axes}</text>')
    for index, (name, ours, others) in enumerate(curves):
        label = name.replace(":", ", ")
        color = COLORS[index % len(COLORS)]

        def inside(points):
            """Places and words of the points that are on the picture."""
            for share, over, what in points:
                if over <= MOST and share <= WIDEST / 10:
                    yield *at(share, over), f"<title>{escape(f'{name}, {what}: {over:+.1f}% in {100 * share:.0f}%')}</title>"

        dots = list(inside(ours))
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in dots)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}">{words}</circle>' for x, y, words in dots]
        for x, y, words in inside(others):
            cross = f"M{x - 5:.1f},{y - 5:.1f}L{x + 5:.1f},{y + 5:.1f}M{x - 5:.1f},{y + 5:.1f}L{x + 5:.1f},{y - 5:.1f}"
            parts.append(f'<path d="{cross}" stroke="{color}" stroke-width="2">{words}</path>')
        y = TOP + 18 * index
        parts.append(f'<circle cx="{right + 22}" cy="{y}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{right + 34}" y="{y + 4}">{escape(label)}</text>')
    parts.append(f'<text x="{right + 18}" y="{TOP + 18 * len(curves) + 4}">x  {WAYS["checkpoint"]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def curves(lines):
    """For each case: its name, and (memory over PyTorch's, overhead in percent, what it is) of every budget and of PyTorch's ways."""
    found, others_of = {}, {}
    for line in lines:
        if "label" in line:
            found.setdefault(line["case"], []).append(line)
        elif "way" in line:
            others_of.setdefault(line["case"], {})[line["way"]] = line
    for case, own in found.items():
        # PyTorch's are in f32.
        ways = others_of.get(case.removesuffix(":f32"), {})
        plain = ways.get("plain", {})
        if "step_ms" not in plain or own[0]["label"] != "resident":
            continue
        whole, resident = plain["peak_bytes"], own[0]["step_time_us"]
        ours = [(line["peak_bytes"] / whole, 100 * (line["step_time_us"] / resident - 1), line["label"]) for line in own]
        others = [
            (line["peak_bytes"] / whole, 100 * (line["step_ms"] / plain["step_ms"] - 1), WAYS[way])
            for way, line in ways.items()
            if "step_ms" in line
        ]
        yield case, sorted(ours), others


if __name__ == "__main__":
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else ROOT / "docs/pictures/joint-plan.svg"
    output.write_text(picture(list(curves(measured_lines.read(ROOT / "docs/measured/joint.jsonl")))))
