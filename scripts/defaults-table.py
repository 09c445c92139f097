#!/usr/bin/env python3
"""The table of the defaults of `tightfit run` in docs/results.md, from what scripts/gpu-run.sh measured.

usage: scripts/defaults-table.py collect OUTPUT ..      one JSON line for each pair of plain and run in the stages `anytime`;
                                                        options of `run` are added by hand where there were any
       scripts/defaults-table.py table FILE             the table, from these lines

Prints to standard output.
"""

import json
import pathlib
import sys

KEPT = ["first_step_s", "longest_step_ms", "settled_s", "step_ms", "torch_peak_gib", "tuning_torch_peak_gib", "driver_peak_gib"]
COLUMNS = [
    "network, mini-batch, types",
    "step (ms), plain",
    "run",
    "first step (s), plain",
    "run",
    "longest step while tuning",
    "settled after (s)",
    "tuned for (s)",
    "peak (GiB), plain",
    "run",
    "driver, plain",
    "run, then",
    "divided / replaced / kept",
]


def collect(folders):
    for folder in map(pathlib.Path, folders):
        plain = None
        for line in (folder / "anytime.jsonl").read_text().splitlines():
            figures = json.loads(line)
            if figures["label"] == "plain":
                plain = figures
                continue
            report = json.loads((folder / f"report-{figures['label']}.json").read_text())
            decisions = [kernel["decision"] for kernel in report["kernels"]]
            row = {"case": figures["case"], "limit": report.get("workspace_limit") or report["workspace_limit_bytes"], "folder": folder.name}
            row |= {"plain": {name: plain[name] for name in KEPT}, "run": {name: figures[name] for name in KEPT}}
            if report["totals"].get("shipped_hits"):
                row["options"] = "decisions that ship"
            row["tuned_s"] = round(report["totals"]["tuning_us"] / 1e6, 2)
            row["kernels"] = {of: decisions.count(of) for of in ("divided", "replaced", "kept")}
            print(json.dumps(row))


def cells(row):
    plain, run, kernels = row["plain"], row["run"], row["kernels"]
    network, batch, types, *size = row["case"].split(":")
    name = f"{network} {batch} {types}" + "".join(f", {edge} pixels" for edge in size)
    options = f", {row['options']}" if "options" in row else ""
    peaks = [max(of["torch_peak_gib"], of["tuning_torch_peak_gib"]) for of in (plain, run)]
    return [
        name + options,
        f"{plain['step_ms']:.1f}",
        f"{run['step_ms']:.1f}",
        f"{plain['first_step_s']:.2f}",
        f"{run['first_step_s']:.2f}",
        f"{run['longest_step_ms']:.0f}",
        f"{run['settled_s']:.1f}",
        f"{row['tuned_s']:.1f}",
        f"{peaks[0]:.2f}",
        f"{peaks[1]:.2f}",
        f"{plain['driver_peak_gib']:.2f}",
        f"{run['driver_peak_gib']:.2f}",
        " / ".join(str(kernels[of]) for of in ("divided", "replaced", "kept")),
    ]


def table(path):
    rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    for row in [COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows)]:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("collect", "table"):
        sys.exit(__doc__)
    collect(sys.argv[2:]) if sys.argv[1] == "collect" else table(sys.argv[2])
