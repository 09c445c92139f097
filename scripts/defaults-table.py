#!/usr/bin/env python3
"""The table of the defaults of `tightfit run` in docs/results.md, from what scripts/gpu-defaults.sh measured.

usage: scripts/defaults-table.py collect OUTPUT ..      one JSON line for each pair of plain and run; the name of a folder in OUTPUT
                                                        says how it ran: round*, alone*, limit-*, layer-*, first-*, ddp*
       scripts/defaults-table.py table FILE             the table, from these lines, a row for the pairs of a case on one GPU

Prints to standard output.
"""

import json
import pathlib
import statistics
import sys

import measured_lines

KEPT = [
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
COLUMNS = [
    "network, mini-batch, types",
    "pairs",
    "step (ms), plain",
    "run",
    "run over plain",
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
    "of these shipped",
]


def options_of(folder, limit):
    """What the pairs of a folder differ in from the defaults."""
    if folder.startswith("first-"):
        return "`--tune first --tune-budget unlimited`"
    if folder.startswith("alone"):
        return "one process at a time"
    if folder.startswith(("limit-", "layer-")):
        budget = " --tune-budget 30s" if folder.endswith("-30") else ""
        return f"`--workspace {limit >> 20}MiB{budget}`"
    return ""


def collect(outputs):
    folders = sorted(folder for output in map(pathlib.Path, outputs) for folder in output.iterdir() if folder.is_dir())
    for folder in folders:
        lines = [line for name in ("anytime", "ddp") for line in read(folder / f"{name}.jsonl")]
        for pair in zip(lines[::2], lines[1::2], strict=False):
            if not all("step_ms" in figures for figures in pair):
                continue
            plain, figures = sorted(pair, key=lambda figures: figures["label"] != "plain")
            # Of several ranks, or of the one process; the launcher of ranks runs no kernels.
            reports = [json.loads(path.read_text()) for path in sorted(folder.glob(f"report-{figures['label']}*.json"))]
            report = max(reports, key=lambda report: len(report["kernels"]))
            limit = report.get("workspace_limit") or report["workspace_limit_bytes"]
            decisions = [kernel["decision"] for kernel in report["kernels"]]
            row = {"case": figures["case"], "options": options_of(folder.name, limit), "folder": folder.name}
            row |= {way: {name: of[name] for name in KEPT if name in of} for way, of in (("plain", plain), ("run", figures))}
            row["shipped"] = report["totals"].get("shipped_hits", 0)
            row["tuned_s"] = round(report["totals"]["tuning_us"] / 1e6, 2)
            row["kernels"] = {of: decisions.count(of) for of in ("divided", "replaced", "kept")}
            print(json.dumps(row))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def cells(rows):
    network, batch, types, *size = rows[0]["case"].split(":")
    name = f"{network} {batch} {types}" + "".join(f", {edge} pixels" for edge in size)

    def of(way, name, join=statistics.median):
        return join([row[way][name] for row in rows])

    def peak(way):
        return max(of(way, "torch_peak_gib", max), of(way, "tuning_torch_peak_gib", max))

    ratios = sorted(row["run"]["step_ms"] / row["plain"]["step_ms"] for row in rows)
    spread = f" ({ratios[0]:.2f} to {ratios[-1]:.2f})" if len(rows) > 1 else ""
    last = rows[-1]
    return [
        name + (f", {last['options']}" if last["options"] else ""),
        str(len(rows)),
        f"{of('plain', 'step_ms'):.1f}",
        f"{of('run', 'step_ms'):.1f}",
        f"{statistics.median(ratios):.2f}{spread}",
        f"{of('plain', 'first_step_s'):.2f}",
        f"{of('run', 'first_step_s'):.2f}",
        f"{of('run', 'longest_step_ms', max):.0f}",
        f"{of('run', 'settled_s', max):.1f}",
        f"{max(row['tuned_s'] for row in rows):.1f}",
        f"{peak('plain'):.2f}",
        f"{peak('run'):.2f}",
        f"{of('plain', 'driver_peak_gib', max):.2f}",
        f"{of('run', 'driver_peak_gib', max):.2f}",
        " / ".join(str(last["kernels"][of]) for of in ("divided", "replaced", "kept")),
        str(last["shipped"] or "-"),
    ]


def table(path):
    groups = {}
    for row in measured_lines.read(pathlib.Path(path)):
        if row["folder"].startswith("ddp"):
            continue
        groups.setdefault((row["options"], row["case"]), []).append(row)
    for row in [COLUMNS, ["---"] * len(COLUMNS), *map(cells, groups.values())]:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("collect", "table"):
        sys.exit(__doc__)
    collect(sys.argv[2:]) if sys.argv[1] == "collect" else table(sys.argv[2])
