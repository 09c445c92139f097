"""Tables of what ran on a GPU: docs/measured/papers.jsonl has the lines of scripts/gpu-papers.sh, vdnn.jsonl those of
scripts/gpu-train.sh; files with a date have what the tables of a run printed."""

import json
from collections.abc import Callable
from typing import Any

from .tables import ROOT

Json = dict[str, Any]
MEASURED = ROOT / "docs/measured"
NETWORKS = ["alexnet:256", "resnet18:128", "resnet50:64"]
SIZES = ["undivided", "power-of-two", "fit", "all"]


def lines() -> dict[str, dict[str, Json]]:
    """By name, then by NETWORK:BATCH: the steps of each job."""
    found = [json.loads(line) for line in (MEASURED / "papers.jsonl").read_text().splitlines()]
    return {line["name"]: {step["case"].rsplit(":", 1)[0]: step for step in line["steps"]} for line in found}


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def step_of(measured: dict[str, dict[str, Json]], job: str, network: str) -> Json | None:
    """A network's step in a job of several, or in one of its own."""
    for name in (job, f"{job}-{network.split(':')[0]}"):
        if step := measured.get(name, {}).get(network):
            return step
    return None


def iterations() -> str:
    """Whole PyTorch iterations and their convolutions alone, by limit and sizes, and without a limit."""
    measured = lines()
    rows = []
    for network in NETWORKS:
        plain = measured["iterations-plain"][network]
        blank = [""] * (len(SIZES) - 1)
        cells = [f"{plain['step_ms']:.1f}", *blank, f"{plain['convolutions_ms']:.1f}", *blank]
        rows.append([" ".join(network.split(":")), "none (plain)", *cells])
        for limit in ("8", "64", "512"):
            steps = {sizes: step_of(measured, f"iterations-{limit}-{sizes}", network) for sizes in SIZES}
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


NAMES = {"alexnet": "AlexNet", "overfeat": "OverFeat", "googlenet": "GoogLeNet"}


def named(case: str) -> str:
    """A network with its mini-batch, as the page writes it."""
    network, batch = case.split(":")
    return f"{NAMES.get(network, network.replace('vgg', 'VGG-').replace('resnet', 'ResNet-'))} {batch}"


def of_policies(found: list[Json], cell: Callable[[Json, Json], str]) -> str:
    """A row for each network, a cell for each policy that ran, from its line and that of the oracle."""
    rows = []
    for case in dict.fromkeys(line["case"] for line in found):
        steps = {line["variant"]: line for line in found if line["case"] == case}
        cells = [cell(steps[of], steps["oracle"]) if of in steps else "-" for of in ("oracle", *POLICIES)]
        rows.append([named(case), *cells])
    return table(["network", "oracle", *(policy.replace(" d", ", d") for policy in POLICIES)], rows)


def policies() -> str:
    """Milliseconds of a step by policy under 12 GiB, and the fraction of the oracle's speed over the feature extraction layers."""
    found = [json.loads(line) for line in (MEASURED / "vdnn.jsonl").read_text().splitlines()]

    def cell(step: Json, oracle: Json) -> str:
        if "step_us" not in step:
            return "-"
        fraction = "" if step is oracle else f" ({oracle['features_us'] / step['features_us']:.2f})"
        return f"{step['step_us'] / 1e3:.1f}{fraction}"

    return of_policies([line for line in found if line["variant"] == "oracle" or not line["whole"]], cell)


def of_run(name: str, table: str = "") -> list[Json]:
    """The lines of a dated file, after the one about the run."""
    _, *rest = [json.loads(line) for line in (MEASURED / f"{name}-2026-11-21.jsonl").read_text().splitlines()]
    return [line for line in rest if line.get("table", "") == table]


def one_byte_too_little() -> str:
    """A kernel within a byte less than its fastest algorithm needs."""
    lines = of_run("papers", "one-byte-too-little")
    rows = [
        [
            line["kernel"],
            f"{line['best_workspace_mib']} MiB",
            f"{line['undivided_ms']:.2f} ms",
            f"{line['parts']}, {line['divided_ms']:.2f} ms",
            f"{line['undivided_ms'] / line['divided_ms']:.2f}",
        ]
        for line in lines
    ]
    undivided, divided = (sum(line[of] for line in lines) for of in ("undivided_ms", "divided_ms"))
    rows.append(["total", "", f"{undivided:.1f} ms", f"{divided:.2f} ms", f"{undivided / divided:.2f}"])
    return table(["kernel", "workspace of the best", "undivided", "divided", "gain"], rows)


def optimized_totals() -> str:
    """Convolutions within one total, beside an equal share for each, undivided."""
    rows = []
    for line in of_run("papers", "totals"):
        wd, undivided = line["wd_ms"], f"{line['undivided_ms']} ms"
        ratio = f"{line['undivided_ms'] / wd:.2f}"
        if "wider_each_mib" in line:
            undivided += f" (at {line['wider_each_mib']} MiB each: {line['undivided_wider_ms']:.2f})"
            ratio += f" ({line['undivided_wider_ms'] / wd:.2f})"
        rows.append([line["network"], f"{line['total_mib']} MiB", undivided, f"{wd} ms", ratio, str(line.get("goal", "none"))])
    return table(["network", "total", "WR undivided", "WD", "ratio", "goal"], rows)


PAPER_TABLE_5 = {"AlexNet b256": "1.24", "ResNet-50 b64": "1.05", "DenseNet-40 b256, k = 40": "1.11"}


def table_5() -> str:
    """Whole iterations within 64 MiB a kernel, the convolutions alone in parentheses."""
    rows = []
    for line in of_run("papers", "table5"):
        steps = [line.get(of) for of in ("plain", *SIZES[:2], "fit")]
        cells = [f"{step['step_ms']:.1f} ({step['convolutions_ms']:.1f})" if step else "-" for step in steps]
        gain = [line["undivided"][of] / line["fit"][of] for of in ("step_ms", "convolutions_ms")]
        rows.append([line["network"], *cells, f"{gain[0]:.2f} ({gain[1]:.2f})", PAPER_TABLE_5.get(line["network"], "-")])
    head = ["network", "plain, no limit", "undivided", "power-of-two", "fit", "gain", "the paper (P100, TensorFlow)"]
    return table(head, rows)


def first_policies() -> str:
    """Milliseconds of a step and the fraction of the oracle's speed, or what a policy needs that does not fit."""

    def cell(step: Json, _: Json) -> str:
        if "needs_gib" in step:
            return f"{step['needs_gib']} GiB"
        return str(step["step_ms"]) + (f" ({step['of_oracle']:.2f})" if "of_oracle" in step else "")

    return of_policies(of_run("vdnn"), cell)


def policies_memory() -> str:
    """GiB of the arena, and GiB offloaded in a step."""

    def cell(step: Json, _: Json) -> str:
        return ", ".join(f"{step[of]:{form}}" for of, form in (("arena_gib", ".2f"), ("offloaded_gib", ".1f")) if of in step) or "-"

    return of_policies(of_run("vdnn"), cell)


TABLES = {
    "mucudnn-iterations": iterations,
    "mucudnn-totals-run": totals,
    "mucudnn-one-byte-run": one_byte_too_little,
    "mucudnn-totals-optimized": optimized_totals,
    "mucudnn-table-5": table_5,
    "vdnn-run": policies,
    "vdnn-run-first": first_policies,
    "vdnn-run-memory": policies_memory,
}
