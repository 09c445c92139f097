#!/usr/bin/env python3
"""The table and the picture of PyTorch models in a budget in docs/results.md, from what scripts/gpu-fit.sh measured.

usage: scripts/fit-table.py table FILE                     a row for each variant of each case
       scripts/fit-table.py picture FILE PICTURE.svg       overhead against memory

FILE is docs/measured/budget.jsonl, of which the lines on H200s with the whole GPU count. Overheads are over plain PyTorch of the
same run. Prints to standard output.
"""

import pathlib
import sys
from html import escape

import measured_lines
from dark_pages import DARK

NAMES = {
    "resnet50:256": "ResNet-50, 256", "vae:4": "autoencoder, 4", "vitl:128": "ViT-L, 128", "convnextb:128": "ConvNeXt-B, 128",
    "unet3d:2": "3-D U-Net, 2", "detector:8": "detector, 8",
}  # fmt: skip
VARIANTS = {
    "plain": "plain", "checkpoint": "a checkpoint for each block", "offload": "`save_on_cpu`", "streams": "offloading on a stream of its own",
    "compile": "`torch.compile`, half of what would be saved",
}  # fmt: skip
# Percent over plain that a share of plain's peak was to cost at most.
GOALS = {
    "resnet50:256": {60: 6, 40: 15}, "vae:4": {60: 4, 40: 8}, "vitl:128": {60: 7, 40: 14}, "unet3d:2": {60: 8, 40: 16},
    "convnextb:128": {60: 10, 40: 16},
}  # fmt: skip
COLUMNS = ["variant", "budget", "peak", "reserved", "step", "over plain", "predicted", "goal", "planned in", "host"]
# Okabe and Ito 2008: color-blind safe.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]


def cases(path):
    """For each case with its types: its lines, of which the first is plain's."""
    found = {}
    for line in measured_lines.read(pathlib.Path(path)):
        whole = line.get("device") == "NVIDIA H200" and "THIRD=1" not in line["command"]
        # Lines of another variant's gradients, and of what was not timed, say nothing here.
        if whole and line.get("case") in NAMES and (line.get("variant") in VARIANTS or line.get("variant") == "ours"):
            if "step_ms" in line or "error" in line:
                types = "tf32" if "tf32" in line["command"] else "bf16"
                found.setdefault((line["case"], types), []).append(line)
    for key, lines in found.items():
        if lines[0]["variant"] != "plain":
            sys.exit(f"{key[0]}: no line of plain PyTorch comes first")
    return found


def gib(count):
    return f"{count / 2**30:.2f} GiB" if count else ""


def cells(case, types, line, plain):
    share = line.get("share")
    name = VARIANTS.get(line["variant"]) or {102: "102% of plain's peak", "least": "the least", "below": "1% below it"}.get(share, f"{share}%")
    if line["variant"] == "plain":
        name = f"**{NAMES[case]}{' in tf32' if types == 'tf32' else ''}**, plain"
    predicted, planning = line.get("predicted_overhead"), line.get("plan_s")
    if "step_ms" not in line:
        least = line.get("least_bytes")
        failed = "out of memory" if "OutOfMemory" in line["error"] else line["error"].partition(":")[0]
        return [name, gib(line.get("budget_bytes")), "", "", f"least {gib(least)}" if least else failed, *[""] * 5]
    goal = GOALS.get(case, {}).get(share) if types == "bf16" else None
    return [
        name,
        gib(line.get("budget_bytes")),
        gib(line["peak_bytes"]),
        gib(line["reserved_bytes"]),
        f"{line['step_ms']:.1f} ms",
        "" if line is plain else f"{100 * (line['step_ms'] / plain['step_ms'] - 1):.1f}%",
        "" if predicted is None else f"{100 * predicted:.1f}%",
        f"{goal}%" if goal else "",
        "" if planning is None else f"{planning:.1f} s",
        f"{line['host_ms']:.0f} ms",
    ]


def table(path):
    rows = [COLUMNS, ["---", *["---:"] * 9]]
    for (case, types), lines in cases(path).items():
        rows += [cells(case, types, line, lines[0]) for line in lines]
    for row in rows:
        print("| " + " | ".join(row) + " |")


def picture(path, most=45, left=60, top=40, width=520, height=300):
    """An SVG: budgets as connected dots, checkpoints as crosses; what takes over `most` percent more is left out."""
    right, bottom = left + width, top + height
    found = {key: lines for key, lines in cases(path).items() if key[1] == "bf16"}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 190} {bottom + 60}" font-family="sans-serif" font-size="12">',
        DARK,
        f'<rect class="paper" width="{right + 190}" height="{bottom + 60}" fill="#ffffff"/>',
        '<text x="16" y="22" font-size="15">PyTorch models in a budget, bf16, on an H200</text>',
    ]

    def at(share, over):
        return left + width * share / 1.1, bottom - height * max(over, 0) / most

    for over in range(0, most + 1, 10):
        _, y = at(0, over)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">+{over}%</text>')
    for tenths in range(0, 12, 2):
        x, _ = at(tenths / 10, 0)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tenths * 10}%</text>')
    parts.append(f'<text x="{left}" y="{bottom + 40}">peak and time of a step over those of plain PyTorch in the same run</text>')
    for index, ((case, _), lines) in enumerate(found.items()):
        color, plain = COLORS[index % len(COLORS)], lines[0]
        points = [
            (line["peak_bytes"] / plain["peak_bytes"], 100 * (line["step_ms"] / plain["step_ms"] - 1), line)
            for line in lines
            if "step_ms" in line
        ]
        points = [point for point in points if point[1] <= most]
        ours = sorted(((share, over, line) for share, over, line in points if line["variant"] == "ours"), key=lambda one: one[0])
        places = " ".join("{:.1f},{:.1f}".format(*at(share, over)) for share, over, _ in ours)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="2"/>')
        for share, over, line in points:
            x, y = at(share, over)
            said = f"{NAMES[case]}, {VARIANTS.get(line['variant'], line.get('share'))}: {over:+.1f}% in {100 * share:.0f}%"
            title = f"<title>{escape(said)}</title>"
            if line["variant"] == "ours":
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}">{title}</circle>')
            elif line["variant"] == "checkpoint":
                cross = f"M{x - 5:.1f},{y - 5:.1f}L{x + 5:.1f},{y + 5:.1f}M{x - 5:.1f},{y + 5:.1f}L{x + 5:.1f},{y - 5:.1f}"
                parts.append(f'<path d="{cross}" stroke="{color}" stroke-width="2">{title}</path>')
        y = top + 18 * index
        parts.append(f'<circle cx="{right + 22}" cy="{y}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{right + 34}" y="{y + 4}">{escape(NAMES[case])}</text>')
    parts.append(f'<text x="{right + 18}" y="{top + 18 * len(found) + 4}">x  a checkpoint a block</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    command, *rest = sys.argv[1:] or [""]
    if command == "table" and len(rest) == 1:
        table(rest[0])
    elif command == "picture" and len(rest) == 2:
        pathlib.Path(rest[1]).write_text(picture(rest[0]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
