#!/usr/bin/env python3
"""Turns the output of GPU scripts into lines of docs/measured.

usage: scripts/collect.py defaults OUTPUT ..      of scripts/gpu-defaults.sh: a line for each pair of plain and run. The name of a folder in
                                                  OUTPUT says how it ran: round*, alone*, limit-*, layer-*, first-*, ddp*
       scripts/collect.py joint OUTPUT ..         of scripts/gpu-joint.sh: a line for each run and each way of PyTorch

Prints to standard output.
"""

import json
import pathlib
import sys

OF_DEFAULTS = [
    "first_step_s",
    "longest_step_ms",
    "settled_s",
    "step_ms",
    "queue_ms",
    "library_ms",
    "torch_peak_gib",
    "tuning_torch_peak_gib",
    "driver_peak_gib",
    "tuning_driver_peak_gib",
]
OF_PLANS = [
    "budget_bytes", "peak_bytes", "planned_peak_bytes", "min_feasible_bytes", "offloaded_bytes", "host_bytes", "planned_step_time_us",
    "step_time_us", "step_times_us", "recomputed_us", "bound_us", "gap", "planning_us", "losses",
]  # fmt: skip


def options_of(folder, limit):
    """The options by which the pairs of a folder differ from the defaults."""
    if folder.startswith("first-"):
        return "`--tune first --tune-budget unlimited`"
    if folder.startswith("alone"):
        return "one process at a time"
    if folder.startswith(("limit-", "layer-")):
        budget = " --tune-budget 30s" if folder.endswith("-30") else ""
        return f"`--workspace {limit >> 20}MiB{budget}`"
    return ""


def defaults(outputs):
    folders = sorted(folder for output in map(pathlib.Path, outputs) for folder in output.iterdir() if folder.is_dir())
    for folder in folders:
        lines = [line for name in ("anytime", "ddp") for line in read(folder / f"{name}.jsonl")]
        for pair in zip(lines[::2], lines[1::2], strict=False):
            if not all("step_ms" in figures for figures in pair):
                continue
            plain, figures = sorted(pair, key=lambda figures: figures["label"] != "plain")
            # The report of a rank or of the only process; the launcher of ranks runs no kernels.
            reports = [json.loads(path.read_text()) for path in sorted(folder.glob(f"report-{figures['label']}*.json"))]
            report = max(reports, key=lambda report: len(report["kernels"]))
            limit = report.get("workspace_limit") or report["workspace_limit_bytes"]
            decisions = [kernel["decision"] for kernel in report["kernels"]]
            row = {"case": figures["case"], "options": options_of(folder.name, limit), "folder": folder.name}
            row |= {way: {name: of[name] for name in OF_DEFAULTS if name in of} for way, of in (("plain", plain), ("run", figures))}
            row["shipped"] = report["totals"].get("shipped_hits", 0)
            row["tuned_s"] = round(report["totals"]["tuning_us"] / 1e6, 2)
            row["kernels"] = {of: decisions.count(of) for of in ("divided", "replaced", "kept")}
            print(json.dumps(row))


def joint(folders):
    for folder in map(pathlib.Path, folders):
        for line in read(folder / "joint.jsonl"):
            if line["exit"] == 0:
                print(json.dumps({"case": line["case"], "label": line["label"]} | {key: line[key] for key in OF_PLANS if key in line}))
        for line in read(folder / "peers.jsonl"):
            print(json.dumps(line))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    ways = {"defaults": defaults, "joint": joint}
    if len(sys.argv) < 3 or sys.argv[1] not in ways:
        sys.exit(__doc__)
    ways[sys.argv[1]](sys.argv[2:])
