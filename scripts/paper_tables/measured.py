"""Tables of what ran on a GPU: docs/measured/papers.jsonl has the lines of scripts/gpu-papers.sh, vdnn.jsonl those of
scripts/gpu-train.sh."""

import json
from typing import Any

from .tables import ROOT

Json = dict[str, Any]
MEASURED = ROOT / "docs/measured"
NETWORKS = ["alexnet:256", "resnet18:128", "resnet50:64"]
SIZES = ["undivided", "power-of-two", "fit"]


def lines() -> dict[str, dict[str, Json]]:
    """By name, then by NETWORK:BATCH: the steps of each job."""
    found = [json.loads(line) for line in (MEASURED / "papers.jsonl").read_text().splitlines()]
    return {line["name"]: {step["case"].rsplit(":", 1)[0]: step for step in line["steps"]} for line in found}


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def iterations() -> str:
    """Whole PyTorch iterations and their convolutions alone, by limit and sizes, and without a limit."""
    measured = lines()
    rows = []
    for network in NETWORKS:
        plain = measured["iterations-plain"][network]
        cells = [f"{plain['step_ms']:.1f}", "", "", f"{plain['convolutions_ms']:.1f}", "", ""]
        rows.append([" ".join(network.split(":")), "none (plain)", *cells])
        for limit in ("8", "64", "512"):
            steps = {sizes: measured.get(f"iterations-{limit}-{sizes}", {}).get(network) for sizes in SIZES}
            base = steps["undivided"]
            cells = [" ".join(network.split(":")), f"{limit} MiB"]
            for of in ("step_ms", "convolutions_ms"):
                for sizes in SIZES:
                    step = steps[sizes]
                    gain = "" if sizes == "undivided" or not step else f" ({base[of] / step[of]:.2f})"
                    cells.append(f"{step[of]:.1f}{gain}" if step else "-")
            rows.append(cells)
    head = ["network, mini-batch", "limit"] + [f"{of}, {sizes}" for of in ("iteration (ms)", "convolutions") for sizes in SIZES]
    return table(head, rows)


def totals() -> str:
    """Whole PyTorch iterations with one total, plain without a limit beside them."""
    measured = lines()
    rows = []
    for name, (network, step) in ((name, next(iter(steps.items()))) for name, steps in measured.items() if name.startswith("total-")):
        plain = measured["iterations-plain"][network]
        figures = [f"{of['step_ms']:.1f}" for of in (plain, step)] + [f"{of['convolutions_ms']:.1f}" for of in (plain, step)]
        rows.append([" ".join(network.split(":")), f"{name.rsplit('-', 1)[1]} MiB", *figures, f"{step['first_step_s']:.1f} s"])
    head = ["network, mini-batch", "total", "iteration (ms), plain", "in the total", "convolutions, plain", "in the total", "first step"]
    return table(head, sorted(rows, key=lambda row: (row[0], int(row[1].split()[0]))))


POLICIES = ["dynamic", "dynamic divided", "overlap", "overlap divided", "all(p)", "conv(p)", "all(m)", "conv(m)"]


def policies() -> str:
    """Milliseconds of a step by policy under 12 GiB, and the fraction of the oracle's speed over the feature extraction layers."""
    found = [json.loads(line) for line in (MEASURED / "vdnn.jsonl").read_text().splitlines()]
    rows = []
    for case in dict.fromkeys(line["case"] for line in found):
        steps = {line["variant"]: line for line in found if line["case"] == case and not (line["whole"] and line["variant"] != "oracle")}
        oracle = steps["oracle"]

        def cell(policy: str, oracle: Json = oracle, steps: dict[str, Json] = steps) -> str:
            step = steps.get(policy, {})
            return f"{step['step_us'] / 1e3:.1f} ({oracle['features_us'] / step['features_us']:.2f})" if "step_us" in step else "-"

        rows.append([f"{case.split(':')[0].upper().replace('VGG', 'VGG-')} {case.split(':')[1]}", f"{oracle['step_us'] / 1e3:.1f}", *map(cell, POLICIES)])
    return table(["network", "oracle", *(policy.replace(" d", ", d") for policy in POLICIES)], rows)


TABLES = {"mucudnn-iterations": iterations, "mucudnn-totals-run": totals, "vdnn-run": policies}
