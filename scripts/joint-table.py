#!/usr/bin/env python3
"""The table and the picture of the joint plan in docs/results.md, from what scripts/gpu-joint.sh measured.

usage: scripts/joint-table.py collect OUTPUT ..              one JSON line for each run and each way of PyTorch in these folders
       scripts/joint-table.py table FILE                     the table, from these lines
       scripts/joint-table.py picture FILE PICTURE.svg       overhead against memory, beside PyTorch's of the same run

Overheads are over everything resident with the fastest algorithms, of the same run; PyTorch's in the picture are over its own plain
step. Prints to standard output.
"""

import json
import pathlib
import sys

import measured_lines
from overhead_picture import overhead_picture

KEPT = [
    "budget_bytes", "peak_bytes", "planned_peak_bytes", "min_feasible_bytes", "offloaded_bytes", "host_bytes", "planned_step_time_us",
    "step_time_us", "step_times_us", "recomputed_us", "bound_us", "gap", "planning_us", "losses",
]  # fmt: skip
COLUMNS = [
    "network, mini-batch, types", "budget", "peak, planned and used", "offloaded", "recomputed", "gap", "planned in", "step planned", "run",
    "off", "over everything resident", "goal",
]  # fmt: skip
# Percent over everything resident that a budget was to cost at most.
GOALS = {
    "vgg16:256:f32": {"14.3GB": 2, "9.5GB": 8, "6.0GB": 15},
    "resnet50:256:f32": {"13.3GB": 4, "8.8GB": 7, "5.5GB": 10},
    "resnet50:256:tf32": {"13.3GB": 8, "8.8GB": 12, "5.5GB": 18},
}
WAYS = {"plain": "PyTorch", "checkpoint": "PyTorch, checkpoints", "save_on_cpu": "PyTorch, save_on_cpu"}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def collect(folders):
    for folder in map(pathlib.Path, folders):
        for line in lines_of(folder / "joint.jsonl"):
            if line["exit"] == 0:
                print(json.dumps({"case": line["case"], "label": line["label"]} | {key: line[key] for key in KEPT if key in line}))
        for line in lines_of(folder / "peers.jsonl"):
            print(json.dumps(line))


def groups(path):
    """For each case: its own lines, the first of which is everything resident, and PyTorch's."""
    lines = list(measured_lines.read(pathlib.Path(path)))
    found = {}
    for line in lines:
        if "label" in line:
            found.setdefault(line["case"], []).append(line)
    ways = {}
    for line in lines:
        if "way" in line:
            ways.setdefault(line["case"], {})[line["way"]] = line
    # PyTorch's are in f32.
    return {case: (own, ways.get(case.removesuffix(":f32"), {})) for case, own in found.items() if own[0]["label"] == "resident"}


def gigabytes(count):
    return f"{count / 1e9:.2f} GB" if count else "0"


def cells(case, line, resident):
    step, planned, label = line["step_time_us"], line["planned_step_time_us"], line["label"]
    is_resident = label == "resident"
    name = {"resident": "everything resident", "least": f"the least, {gigabytes(line['budget_bytes'])}"}.get(label, label)
    name = f"{label}%, {gigabytes(line['budget_bytes'])}" if label.isdigit() else name
    again, gap, planning = (line.get(key) for key in ("recomputed_us", "gap", "planning_us"))
    goal = GOALS.get(case.partition(",")[0], {}).get(label)
    peak = gigabytes(line["peak_bytes"])
    if gigabytes(line["planned_peak_bytes"]) != peak:
        peak = f"{gigabytes(line['planned_peak_bytes'])}, {peak}"
    return [
        f"**{case.replace(':', ', ')}**" if is_resident else "",
        name,
        peak,
        gigabytes(line["offloaded_bytes"]),
        "-" if again is None else f"{again / 1e3:.1f} ms",
        "-" if gap is None else f"{100 * gap:.2f}%",
        "-" if planning is None else f"{planning / 1e6:.1f} s",
        f"{planned / 1e3:.1f} ms",
        f"{step / 1e3:.1f} ms",
        f"{100 * (step / planned - 1):+.1f}%",
        "" if is_resident else f"{100 * (step / resident - 1):+.1f}%",
        f"{goal}%" if goal else "",
    ]


def of_pytorch(line, resident):
    if "step_ms" not in line:
        return ["", WAYS[line["way"]], "out of memory"] + [""] * 9
    over = f"{100 * (line['step_ms'] * 1e3 / resident - 1):+.1f}%"
    return ["", WAYS[line["way"]], gigabytes(line["peak_bytes"]), "", "", "", "", "", f"{line['step_ms']:.1f} ms", "", over, ""]


def table(path):
    rows = [COLUMNS, ["---"] * 2 + ["---:"] * 10]
    for case, (own, ways) in groups(path).items():
        resident = own[0]["step_time_us"]
        rows += [cells(case, line, resident) for line in own]
        rows += [of_pytorch(line, resident) for line in ways.values()]
    for row in rows:
        print("| " + " | ".join(row) + " |")


def curves(path):
    """For each case: its names, and (memory over PyTorch's, overhead in percent, what it is) of every budget and of PyTorch's ways."""
    for case, (own, ways) in groups(path).items():
        plain = ways.get("plain", {})
        if "step_ms" not in plain:
            continue
        whole, resident = plain["peak_bytes"], own[0]["step_time_us"]
        ours = [(line["peak_bytes"] / whole, 100 * (line["step_time_us"] / resident - 1), line["label"]) for line in own]
        others = [
            (line["peak_bytes"] / whole, 100 * (line["step_ms"] / plain["step_ms"] - 1), WAYS[way])
            for way, line in ways.items()
            if "step_ms" in line
        ]
        yield case, case.replace(":", ", "), sorted(ours), others


def picture(path):
    axes = "memory over that of plain PyTorch in the same run; time over everything resident"
    title = "Time and memory of a training step on an H200"
    return overhead_picture(title, axes, WAYS["checkpoint"], list(curves(path)), most=60, widest=13)


def main():
    command, *rest = sys.argv[1:] or [""]
    if command == "collect" and rest:
        collect(rest)
    elif command == "table" and len(rest) == 1:
        table(rest[0])
    elif command == "picture" and len(rest) == 2:
        pathlib.Path(rest[1]).write_text(picture(rest[0]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
