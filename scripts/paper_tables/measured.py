"""Tables of what scripts/gpu-papers.sh measured: docs/measured/papers.jsonl has its lines."""

import json
from typing import Any

from .tables import ROOT

Json = dict[str, Any]
FILE = "docs/measured/papers.jsonl"
NETWORKS = ["alexnet:256", "resnet18:128", "resnet50:64"]
SIZES = ["undivided", "power-of-two", "fit"]


def lines() -> dict[str, dict[str, Json]]:
    """By name, then by NETWORK:BATCH: the steps of each job."""
    found = [json.loads(line) for line in (ROOT / FILE).read_text().splitlines()]
    return {line["name"]: {step["case"].rsplit(":", 1)[0]: step for step in line["steps"]} for line in found}


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def iterations() -> str:
    """Whole PyTorch iterations and their convolutions alone, by limit and sizes."""
    measured = lines()
    rows = []
    for network in NETWORKS:
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


TABLES = {"mucudnn-iterations": iterations}
