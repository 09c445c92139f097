#!/usr/bin/env python3
"""The table and the picture of PyTorch models in a budget in docs/results.md, from what scripts/gpu-fit.sh measured.

usage: scripts/fit-table.py table FILE                     a row for each variant of each case
       scripts/fit-table.py picture FILE PICTURE.svg       overhead against memory

FILE is docs/measured/budget.jsonl, or budget-h100.jsonl. Its lines with the whole GPU and PyTorch's usual algorithms count. Overheads are
over plain PyTorch, of the same run where it is in one. Prints to standard output.
"""

import pathlib
import sys

import measured_lines
from overhead_picture import overhead_picture

NAMES = {
    "resnet50:256": "ResNet-50, 256", "vae:4": "autoencoder, 4", "vitl:128": "ViT-L, 128", "convnextb:128": "ConvNeXt-B, 128",
    "unet3d:2": "3-D U-Net, 2", "unet2d:16": "U-Net, 16", "detector:8": "detector, 8",
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
# Runs of which the page tells elsewhere.
APART = ("THIRD=1", "--benchmark")
COLUMNS = ["variant", "budget", "peak", "reserved", "step", "over plain", "predicted", "goal", "planned in", "host"]


def cases(path):
    """For each case with its types: its lines, of which the first is plain's."""
    found = {}
    devices = set()
    for line in measured_lines.read(pathlib.Path(path)):
        apart = line.get("apart") or any(word in line["command"] for word in APART)
        # Lines of another variant's gradients, and of what was not timed, say nothing here.
        if not apart and line.get("case") in NAMES and (line.get("variant") in VARIANTS or line.get("variant") == "ours"):
            if "step_ms" in line or "error" in line:
                devices.add(line["device"])
                types = "tf32" if "tf32" in line["command"] else "bf16"
                found.setdefault((line["case"], types), []).append(line)
    if len(devices) > 1:
        sys.exit(f"lines of several devices: {', '.join(sorted(devices))}")
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


def curves(found):
    """For each case in bf16: its names, and (peak over plain's, overhead in percent, what it is) of every budget and of checkpoints."""
    for (case, types), lines in found.items():
        if types != "bf16":
            continue
        plain = lines[0]

        def points(variant, lines=lines, plain=plain):
            return [
                (line["peak_bytes"] / plain["peak_bytes"], 100 * (line["step_ms"] / plain["step_ms"] - 1), VARIANTS.get(variant, line.get("share")))
                for line in lines
                if line["variant"] == variant and "step_ms" in line
            ]

        yield NAMES[case], NAMES[case], sorted(points("ours"), key=lambda point: point[0]), points("checkpoint")


def picture(path):
    axes = "peak and time of a step over those of plain PyTorch in the same run"
    found = cases(path)
    device = next(line["device"] for [line, *_] in found.values())
    title = f"PyTorch models in a budget, bf16, on an {device.removeprefix('NVIDIA ')}"
    return overhead_picture(title, axes, "a checkpoint a block", list(curves(found)), most=45, widest=11)


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
