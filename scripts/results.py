#!/usr/bin/env python3
"""Writes the tables of docs/results.md from the lines of docs/measured. Needs no GPU and no build.

usage: scripts/results.py [--check] [--page FILE] [TABLE ..]

A table stands between `<!-- table NAME -->` and `<!-- end -->`. With --check, nothing is written; tables that differ from the measured
lines are listed, and the exit status is 1.

To add a table, put its two markers on the page and a `Table` into TABLES, here of docs/measured/compiled.jsonl:

    Table("peaks", "compiled", ["model", "step [ms]"], lambda line: [line["model"], f"{line['time_ms']:.1f}"], lambda line: "time_ms" in line),

The device, the versions, the date and the commands below a table come from its lines.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import marked_tables
import measured_lines
from measured_lines import Json

ROOT = pathlib.Path(__file__).parents[1]
Rows = list[list[str]]
# Rows as they were printed by runs of which no other lines were kept.
TRANSCRIBED = "results-printed"


@dataclass(frozen=True)
class Table:
    """A table of the lines of files of docs/measured."""

    name: str
    files: str
    head: Sequence[str] = ()
    # One row for each line that `keep` accepts.
    cells: Callable[[Json], list[str]] = lambda line: []
    keep: Callable[[Json], bool] = lambda line: True
    # In place of `head` and `cells`: all rows of the kept lines, the first of which is the head.
    rows: Callable[[list[Json]], Rows] | None = None


def gib(count: float | None) -> str:
    return f"{count / 2**30:.2f}" if count else ""


def over(time: float, plain: float) -> str:
    percent = 100 * (time / plain - 1)
    return f"{percent:+.0f}%" if abs(percent) >= 9.95 else f"{percent:+.1f}%"


def printed(name: str) -> Table:
    """A table whose rows were transcribed from printed text."""

    def rows(lines: list[Json]) -> Rows:
        return [list(lines[0]["row"]), *(list(line["row"].values()) for line in lines)]

    return Table(name, TRANSCRIBED, keep=lambda line: line["table"] == name, rows=rows)


MODELS = {
    "resnet50:256": "ResNet-50, 256", "vae:4": "autoencoder, 4", "vitl:128": "ViT-L, 128", "convnextb:128": "ConvNeXt-B, 128",
    "unet3d:2": "3-D U-Net, 2", "unet2d:16": "U-Net, 16", "detector:8": "detector, 8", "efficientnet_v2_s:128": "EfficientNet-V2-S, 128",
    "densenet121:128": "DenseNet-121, 128", "regnet_y_3_2gf:128": "RegNetY-3.2GF, 128", "gpt2:8": "GPT-2 (24 layers of 1024), 8", "wide_resnet50_2:128": "Wide ResNet-50-2, 128",
}  # fmt: skip

NAMES = {"resnet50": "ResNet-50", "efficientnet_v2_s": "EfficientNet-V2-S", "regnet_y_3_2gf": "RegNetY-3.2GF", "densenet121": "DenseNet-121"}


def budgets(lines: list[Json]) -> Rows:
    """For each model, the last step at each share of plain's peak over plain PyTorch in the same process."""
    plain, found = {}, {}
    for line in lines:
        case = line.get("case")
        if line.get("variant") == "plain":
            plain[case] = line
        elif line.get("variant") == "ours":
            found[case, line["share"], line["recompute"]] = line, plain[case]

    def cell(case: str, share: int, recompute: bool) -> str:
        if (case, share, recompute) not in found:
            return ""
        line, beside = found[case, share, recompute]
        if "step_ms" not in line:
            return "refused"
        return f"{over(line['step_ms'], beside['step_ms'])} ({over(1 + line['predicted_overhead'], 1)})"

    rows = [["model, mini-batch", "plain", "peak, plain", "60%", "40%", "60%, no recomputation", "40%, no recomputation"]]
    for case, line in plain.items():
        cells = [cell(case, share, recompute) for recompute in (True, False) for share in (60, 40)]
        rows.append([MODELS[case], f"{line['step_ms']:.1f} ms", f"{gib(line['peak_bytes'])} GiB", *cells])
    return rows


def turns(lines: list[Json]) -> Rows:
    """Plain and fitted steps of two processes that take turns, and how long they keep their host."""
    rows = [["model, mini-batch", "share", "step, plain", "step", "over plain", "host, plain", "host", "peak, plain", "peak"]]
    for line in lines:
        model = MODELS.get(line["model"]) or f"{NAMES[line['model']]}, {line['batch']}, fp32"
        if "error" in line:
            rows.append([model, f"{line['share']}%", "refused", *[""] * 6])
            continue
        (plain, step), hosts = line["step_ms"], line["host_ms"]
        times = [f"{plain:.1f} ms", f"{step:.1f} ms", over(step, plain), *(f"{host:.1f} ms" for host in hosts)]
        rows.append([model, f"{line['share']}%", *times, *(f"{gib(peak)} GiB" for peak in line["peak_bytes"])])
    return rows


def peers(lines: list[Json]) -> Rows:
    """For each model: time and peak of PyTorch's own ways over plain in the same run."""
    ways = {
        "checkpoint": "a checkpoint a block", "compile": "`torch.compile`, half saved", "offload": "`save_on_cpu`",
        "streams": "offloading, own stream",
    }  # fmt: skip
    plain, found = {}, {}
    for line in lines:
        if line["variant"] == "plain":
            plain[line["case"]] = line
        elif "step_ms" in line:
            beside = plain[line["case"]]
            share = 100 * line["peak_bytes"] / beside["peak_bytes"]
            found.setdefault(line["case"], {}).setdefault(line["variant"], f"{over(line['step_ms'], beside['step_ms'])} in {share:.0f}%")
    rows = [["model, mini-batch", "plain", *ways.values()]]
    for case, cells in found.items():
        line = plain[case]
        rows.append([MODELS[case], f"{line['step_ms']:.1f} ms, {gib(line['peak_bytes'])} GiB", *(cells.get(way, "") for way in ways)])
    return rows


def compiled(lines: list[Json]) -> Rows:
    """For each model: the last step of each way, and ours in the bytes of each of PyTorch's settings."""
    settings = (0.5, 0.2, 0.0)
    found: dict[str, dict[tuple[str, float], Json]] = {}
    for line in lines:
        if "time_ms" in line and not line.get("warm"):
            of = found.setdefault(f"{line['model']}, {line['batch']}", {})
            asked = line["asked"] or 0
            of["ours" if line["way"] == "ours" else line["way"], asked] = line

    def cell(line: Json | None) -> str:
        return f"{line['time_ms']:.1f} in {line['peak_bytes'] / 2**30:.2f}" if line else ""

    rows = [["model, mini-batch", "eager [ms in GiB]", "`torch.compile`", *(f"{b} {of}" for b in settings for of in ("PyTorch", "ours")), "ours in others"]]
    for model, of in sorted(found.items(), key=lambda one: (not one[0].startswith("resnet50"), one[0])):
        theirs = {setting: of["b", setting] for setting in settings if ("b", setting) in of}
        # Ours was asked for the bytes of one of PyTorch's runs and 2% more; runs differ.
        ours: dict[float | None, Json] = {}
        for line in (line for (way, _), line in of.items() if way == "ours"):
            far = {setting: abs(line["asked"] / other["peak_bytes"] - 1.02) for setting, other in theirs.items()}
            near = min(far, key=lambda setting: far[setting], default=None)
            ours[near if near is not None and far[near] < 0.016 else None] = line
        cells = [cell(of.get((way, 0))) for way in ("eager", "compile")]
        for setting in settings:
            cells += [cell(theirs.get(setting)), cell(ours.get(setting))]
        rows.append([model, *cells, cell(ours.get(None))])
    return rows


def defaults(lines: list[Json]) -> Rows:
    """For each case: plain PyTorch and `run` in pairs of processes on each device, medians, and the most of what tuning costs."""
    devices = list(dict.fromkeys(line["device"] for line in lines))
    groups: dict[tuple[str, str], dict[str, list[Json]]] = {}
    for line in lines:
        groups.setdefault((line["case"], line["options"]), {}).setdefault(line["device"], []).append(line)

    def cells(pairs: list[Json]) -> list[str]:
        if not pairs:
            return [""] * 5
        ratios = sorted(pair["run"]["step_ms"] / pair["plain"]["step_ms"] for pair in pairs)
        steps = [f"{median(pair[way]['step_ms'] for pair in pairs):.1f}" for way in ("plain", "run")]
        spread = f" ({ratios[0]:.2f} to {ratios[-1]:.2f})" if len(ratios) > 1 else ""
        longest = f"{max(pair['run']['longest_step_ms'] for pair in pairs):.0f}"
        return [*steps, f"{median(ratios):.2f}{spread}", longest, f"{max(pair['tuned_s'] for pair in pairs):.1f}"]

    each = ["plain [ms]", "run", "ratio", "longest", "tuned for [s]"]
    rows = [["network, mini-batch, types", *(f"{device.split()[1]}, {each[0]}" if not at else name for device in devices for at, name in enumerate(each))]]
    for (case, options), by_device in groups.items():
        network, batch, types, *size = case.split(":")
        name = f"{network} {batch} {types}" + "".join(f", {edge} pixels" for edge in size) + (f", {options}" if options else "")
        rows.append([name, *(cell for device in devices for cell in cells(by_device.get(device, [])))])
    return rows


def joint(lines: list[Json]) -> Rows:
    """For each network: what everything resident takes, and time over that in each budget, with the planned time in parentheses."""
    own: dict[tuple[str, str], list[Json]] = {}
    for line in lines:
        if "label" in line:
            own.setdefault((line["device"].split()[1], line["case"]), []).append(line)
    ways = {(line["device"].split()[1], line["case"], line["way"]): line for line in lines if "way" in line}
    rows = [["network, mini-batch, types", "device", "everything resident", "in a budget: over everything resident, by plan", "PyTorch"]]
    for (device, case), (first, *others) in own.items():
        resident, planned = first["step_time_us"], first["planned_step_time_us"]
        cells = [
            f"{line['peak_bytes'] / 1e9:.1f} GB {over(line['step_time_us'], resident)} ({over(line['planned_step_time_us'], planned)})"
            for line in others
        ]
        peers = []
        for way, name in (("plain", ""), ("checkpoint", "checkpoints "), ("save_on_cpu", "`save_on_cpu` ")):
            line = ways.get((device, case.removesuffix(":f32"), way))
            if line and "step_ms" in line:
                peers.append(f"{name}{line['step_ms']:.0f} ms in {line['peak_bytes'] / 1e9:.1f} GB")
        whole = f"{resident / 1e3:.1f} ms in {first['peak_bytes'] / 1e9:.1f} GB"
        rows.append([case.replace(":", " "), device, whole, "; ".join(cells), "; ".join(peers)])
    return rows


def programs(lines: list[Json]) -> Rows:
    names = {
        "classification-vit": "torchvision's script, ViT-B, `--amp`", "classification-vit-two-gpus": "the same on two GPUs, by torchrun",
        "classification": "torchvision's script, ResNet-50, `--amp`",
        "classification-deterministic": "the same with `--use-deterministic-algorithms`", "lightning-vit": "Lightning, ViT-B",
        "lightning-resnet": "Lightning, ResNet-50", "transformers-vit": "Transformers Trainer, ViT-B, bf16",
        "nanogpt": "nanoGPT, 16 x 1024, four passes a step", "nanogpt-compiled": "the same, compiled",
        "lightning-resnet-compiled": "Lightning, ResNet-50, compiled", "transformers-vit-compiled": "Transformers Trainer, ViT-B, compiled",
        "segmentation-compiled": "3-D segmentation, 2, compiled", "dcgan": "DCGAN, 500, `cudnn.benchmark`",
    }  # fmt: skip
    rows = [["program", "peak, plain [GB]", "budget", "peak in it", "step, plain [ms]", "steps in the budget", "weights"]]
    for case, name in names.items():
        runs = [line for line in lines if line["case"] == case]
        plain, budget, several, weights = runs[0], 0, [], []
        beside = plain
        for line in runs:
            if line["variant"] == "plain":
                beside = line
                continue
            budget = budget or line["budget_bytes"]
            if line["exit"] == 0:
                several.append(line)
                weights.append("plain's" if line["weights"] == beside["weights"] else "others")
        peak = f"{max(line['peak_bytes'] for line in several) / 1e9:.2f}" if several else "refused"
        steps = ", ".join(f"{line['step_ms']:.1f}" for line in several)
        cells = [f"{plain['peak_bytes'] / 1e9:.2f}", f"{budget / 1e9:.2f}", peak, f"{plain['step_ms']:.1f}", steps]
        rows.append([name, *cells, ", ".join(dict.fromkeys(weights))])
    return rows


def by_default(line: Json) -> bool:
    """Whether a pair ran on one GPU, with the defaults or a limit for whole networks."""
    return not line["folder"].startswith(("ddp", "first-", "layer-")) and not line["folder"].endswith("-30")


PLAIN_ALGORITHMS = ("THIRD=1", "--benchmark", "tf32")


def of_peers(line: Json) -> bool:
    ways = ("plain", "checkpoint", "offload", "streams", "compile")
    return line.get("case") in MODELS and line.get("variant") in ways and not any(word in line["command"] for word in PLAIN_ALGORITHMS)


TABLES = [
    Table("budgets", "recompute", rows=budgets, keep=lambda line: "forward" in line["build"]),
    Table("turns", "turns", rows=turns),
    Table("peers", "budget", rows=peers, keep=of_peers),
    Table("compiled", "compiled", rows=compiled),
    Table("programs", "programs", rows=programs),
    Table("defaults", "defaults defaults-h100", rows=defaults, keep=by_default),
    Table("joint", "joint joint-h100", rows=joint, keep=lambda line: "," not in line["case"] and "eager" not in line["case"]),
]
PRINTED = "limits size-policies vgg tensor-cores decoders"
TABLES += [printed(name) for name in PRINTED.split()]


def source(lines: list[Json], files: list[str]) -> str:
    """Where the lines come from, in one paragraph."""

    def each(field: str, before: str = "") -> list[str]:
        return [before + word for word in dict.fromkeys(text(line[field]) for line in lines if line.get(field))]

    def text(value: str | int) -> str:
        # cuDNN's own form of its version.
        return value if isinstance(value, str) else f"{value // 10000}.{value // 100 % 100}.{value % 100}"

    versions = {"driver": "driver ", "cuda": "CUDA ", "cudnn": "cuDNN ", "torch": "PyTorch ", "rustc": "rustc "}
    words = [" and ".join(each("device")), *(word for field, before in versions.items() for word in each(field, before))]
    dates = sorted(each("date"))
    words.append(dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}")
    commands = each("command")
    if len(commands) > 2:
        links = " and ".join(f"[{file}.jsonl](measured/{file}.jsonl)" for file in files)
        words.append(f"{len(commands)} commands in {links}, such as `{commands[0]}`")
    else:
        words += [f"`{command}`" for command in commands]
    notes = each("note") if files == [TRANSCRIBED] else []
    return "; ".join([", ".join(words), *notes]) + "."


def markdown(table: Table) -> str:
    files = table.files.split()
    read = [line for file in files for line in measured_lines.read(ROOT / f"docs/measured/{file}.jsonl")]
    lines = [line for line in read if table.keep(line) and not line.get("apart")]
    rows = table.rows(lines) if table.rows else [list(table.head), *map(table.cells, lines)]
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{source(lines, files)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/results.md")
    options = parser.parse_args()
    tables = {table.name: lambda table=table: markdown(table) for table in TABLES}
    return marked_tables.update(options.page, tables, options.tables, options.check)


if __name__ == "__main__":
    sys.exit(main())
