"""Tables and sentences of what ran on a device, from the lines of docs/measured."""

from collections.abc import Callable
from statistics import median
from typing import Any

from measured_lines import read

from .tables import GIB, ROOT

Json = dict[str, Any]
MEASURED = ROOT / "docs/measured"
NETWORKS = ["alexnet:256", "resnet18:128", "resnet50:64"]
SIZES = ["undivided", "power-of-two", "fit", "all"]


def lines() -> dict[str, dict[str, Json]]:
    """By name, then by NETWORK:BATCH: the steps of each job of scripts/gpu-papers.sh."""
    found = read(MEASURED / "papers.jsonl")
    return {line["name"]: {step["case"].rsplit(":", 1)[0]: step for step in line["steps"]} for line in found}


def printed(table: str, file: str = "papers") -> list[Json]:
    """The lines of a table that were transcribed from what a run printed."""
    return [line for line in read(MEASURED / f"{file}-printed.jsonl") if line["table"] == table]


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def step_of(measured: dict[str, dict[str, Json]], job: str, network: str) -> Json | None:
    """A network's step in a job of several, or in one of its own."""
    for name in (job, f"{job}-{network.split(':')[0]}"):
        if step := measured.get(name, {}).get(network):
            return step
    return None


def in_pytorch(network: str) -> str:
    """The name of a network that PyTorch ran: torchvision's AlexNet has one column."""
    return network.replace("AlexNet", "AlexNet in one column")


def iterations() -> str:
    """Whole PyTorch iterations and their convolutions alone, by limit and sizes, and without a limit."""
    measured = lines()
    rows = []
    for network in NETWORKS:
        plain = measured["iterations-plain"][network]
        blank = [""] * (len(SIZES) - 1)
        cells = [f"{plain['step_ms']:.1f}", *blank, f"{plain['convolutions_ms']:.1f}", *blank]
        rows.append([in_pytorch(named(network)), "none (plain)", *cells])
        for limit in ("8", "64", "512"):
            steps = {sizes: step_of(measured, f"iterations-{limit}-{sizes}", network) for sizes in SIZES}
            base = steps["undivided"]
            cells = [in_pytorch(named(network)), f"{limit} MiB"]
            for of in ("step_ms", "convolutions_ms"):
                for sizes in SIZES:
                    step = steps[sizes]
                    gain = "" if sizes == "undivided" or not step else f" ({base[of] / step[of]:.2f})"
                    cells.append(f"{step[of]:.1f}{gain}" if step else "-")
            rows.append(cells)
    head = ["network, mini-batch", "limit"] + [f"{of}, {sizes}" for of in ("iteration (ms)", "convolutions") for sizes in SIZES]
    return table(head, rows)


# The job that measured equal shares of a total undivided, where it has another name than shares-NETWORK-TOTAL.
SHARES = {"total-alexnet-120": "iterations-8-undivided"}


def totals() -> str:
    """Whole PyTorch iterations with one total, plain without a limit and undivided with equal shares beside them."""
    measured = lines()
    rows = []
    for name, (network, step) in ((name, next(iter(steps.items()))) for name, steps in measured.items() if name.startswith("total-")):
        plain = measured["iterations-plain"][network]
        shares = measured.get(SHARES.get(name, name.replace("total-", "shares-")), {}).get(network)
        equal = f"{shares['step_ms']:.1f} ({shares['step_ms'] / step['step_ms']:.2f})" if shares else "-"
        figures = [f"{plain['step_ms']:.1f}", equal, f"{step['step_ms']:.1f}"]
        rows.append([in_pytorch(named(network)), f"{name.rsplit('-', 1)[1]} MiB", *figures, f"{step['first_step_s']:.1f} s"])
    iteration = ["iteration (ms), plain", "undivided, equal shares", "in the total"]
    head = ["network, mini-batch", "total", *iteration, "first step"]
    return table(head, sorted(rows, key=lambda row: (row[0], int(row[1].split()[0]))))


POLICIES = ["dynamic", "dynamic divided", "overlap", "overlap divided", "all(p)", "conv(p)", "all(m)", "conv(m)"]


NAMES = {"alexnet": "AlexNet", "overfeat": "OverFeat", "googlenet": "GoogLeNet", "densenet40": "DenseNet-40"}


def named(case: str) -> str:
    """A network with its mini-batch, as the page writes it."""
    network, batch = case.split(":")
    return f"{NAMES.get(network, network.replace('vgg', 'VGG-').replace('resnet', 'ResNet-'))} {batch}"


def steps_by_policy() -> dict[str, dict[str, Json]]:
    """By NETWORK:BATCH, then by policy, within 12 GiB, the oracle without a limit: `step_ms`, `of_oracle`, `arena_gib` and
    `offloaded_gib`, or `needs_gib`."""
    found: dict[str, dict[str, Json]] = {}
    for line in printed("policies", "vdnn"):
        found.setdefault(line["case"], {})[line["variant"]] = line
    for line in read(MEASURED / "vdnn.jsonl"):
        if "step_us" not in line or (line["whole"] and line["variant"] != "oracle"):
            continue
        steps = found.setdefault(line["case"], {})
        step = {"step_ms": round(line["step_us"] / 1e3, 1), "arena_gib": line["arena_bytes"] / GIB}
        if line["host_bytes"]:
            step["offloaded_gib"] = line["host_bytes"] / GIB
        if "oracle" in steps:
            step["of_oracle"] = steps["oracle"]["features_us"] / line["features_us"]
        steps[line["variant"]] = step | {"features_us": line["features_us"]}
    return found


def of_policies(cell: Callable[[Json], str]) -> str:
    """A row for each network, a cell for each policy that ran."""
    rows = []
    for case, steps in sorted(steps_by_policy().items(), key=lambda item: place(item[0])):
        rows.append([named(case), *(cell(steps[of]) if of in steps else "-" for of in ("oracle", *POLICIES))])
    return table(["network", "oracle", *(policy.replace(" d", ", d") for policy in POLICIES)], rows)


ORDER = ["alexnet", "overfeat", "googlenet", "resnet50", "vgg19", "vgg116", "vgg216", "vgg516"]


def place(case: str) -> tuple[int, int]:
    network, batch = case.split(":")
    return ORDER.index(network), int(batch)


def run_policies() -> str:
    """Milliseconds of a step and the fraction of the oracle's speed, or what a policy needs that does not fit."""

    def cell(step: Json) -> str:
        if "needs_gib" in step:
            return f"{step['needs_gib']} GiB"
        return str(step["step_ms"]) + (f" ({step['of_oracle']:.2f})" if "of_oracle" in step else "")

    return of_policies(cell)


def run_memory() -> str:
    """GiB of the arena, and GiB offloaded in a step."""

    def cell(step: Json) -> str:
        return ", ".join(f"{step[of]:{form}}" for of, form in (("arena_gib", ".2f"), ("offloaded_gib", ".1f")) if of in step) or "-"

    return of_policies(cell)


def whole_card() -> str:
    """What dynamic and overlap do where everything fits, and what all(m) and VGG-516 lose within 12 GiB."""
    [line] = printed("whole-card", "vdnn")
    faster, steps = line["faster"], steps_by_policy()
    slower = [of["all(m)"]["step_ms"] / of["oracle"]["step_ms"] for of in steps.values() if "step_ms" in of.get("all(m)", {})]
    deepest = steps["vgg516:32"]
    moved, computing = deepest["dynamic"]["offloaded_gib"], deepest["oracle"]["step_ms"] / 1e3
    return (
        f"With the whole card as budget, {' and '.join(line['policies'])} move nothing and match the oracle to "
        f"{line['off_percent_at_most']}% ({named(faster['case'])} {faster['variant']}\nis {faster['percent']}% faster) wherever they "
        f"were run: all but {', '.join(map(named, line['not_run']))} and VGG-216.\n"
        f"Within 12 GiB, steps under all(m) take {min(slower):.0f} to {max(slower):.0f} times as long as the oracle's. VGG-516 moves "
        f"2 x {moved:.0f} GiB beside {computing:.1f} s\nof computing, {2 * moved / computing:.0f} GiB/s.\n"
    )


def run_dynamic(case: str) -> str:
    """The fraction of the oracle's speed that a step under dynamic had."""
    step = steps_by_policy().get(case.replace("-1col", ""), {}).get("dynamic")
    return f"{step['of_oracle']:.2f}" if step else "-"


def beside_copies() -> str:
    """How much longer computations take while copies run."""
    rows: dict[str, dict[str, str]] = {}
    for line in printed("beside-copies", "vdnn"):
        rows.setdefault(line["case"], {})[line["way"]] = f"{line['longer_percent']}%"
    ways = list(dict.fromkeys(line["way"] for line in printed("beside-copies", "vdnn")))
    ordered = sorted(rows.items(), key=lambda item: place(item[0]))
    return table(["network, mini-batch", *ways], [[named(case), *(found.get(way, "-") for way in ways)] for case, found in ordered])


def one_byte_too_little() -> str:
    """A kernel within a byte less than its fastest algorithm needs."""
    lines = printed("one-byte-too-little")
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
    dearest = dearest_byte()
    sentence = (
        f"\nOne missing byte costs up to a factor of {dearest['undivided_ms'] / dearest['best_ms']:.1f} ({dearest['kernel']}, "
        f"{dearest['best_ms']} to {dearest['undivided_ms']} ms; the paper: 4.51 in AlexNet's\nsecond layer), and dividing recovers "
        f"all but {100 * (dearest['divided_ms'] / dearest['best_ms'] - 1):.0f}% of it.\n"
    )
    return table(["kernel", "workspace of the best", "undivided", "divided", "gain"], rows) + sentence


def dearest_byte() -> Json:
    """The kernel that loses most by one missing byte; `best_ms` is its time with that byte."""
    return max((line for line in printed("one-byte-too-little") if "best_ms" in line), key=lambda line: line["undivided_ms"])


def optimized_totals() -> str:
    """Convolutions within one total, beside an equal share for each, undivided."""
    rows = []
    for line in printed("totals"):
        wd, undivided = line["wd_ms"], f"{line['undivided_ms']} ms"
        ratio = f"{line['undivided_ms'] / wd:.2f}"
        if "wider_each_mib" in line:
            undivided += f" (at {line['wider_each_mib']} MiB each: {line['undivided_wider_ms']:.2f})"
            ratio += f" ({line['undivided_wider_ms'] / wd:.2f})"
        rows.append([line["network"], f"{line['total_mib']} MiB", undivided, f"{wd} ms", ratio, str(line.get("goal", "none"))])
    return table(["network", "total", "WR undivided", "WD", "ratio", "goal"], rows)


PAPER_TABLE_5 = {
    "AlexNet b256": ["229.0", "186.0 (1.23)", "185.0 (1.24)"],
    "ResNet-50 b64": ["318.0", "302.0 (1.05)", "302.0 (1.05; A: 1.06)"],
    "DenseNet-40 b256, k = 40": ["639.0", "579.0 (1.10)", "574.0 (1.11)"],
}


def table_5() -> str:
    """Whole iterations within 64 MiB a kernel, the convolutions alone in parentheses."""
    rows = []
    for line in printed("table5"):
        steps = [line.get(of) for of in ("plain", *SIZES[:2], "fit")]
        cells = [f"{step['step_ms']:.1f} ({step['convolutions_ms']:.1f})" if step else "-" for step in steps]
        gains = ["-" if name not in line else table_5_gain(line, name) for name in ("power-of-two", "fit")]
        plain = f"{line['plain']['step_ms'] / line['fit']['step_ms']:.2f}"
        rows.append([in_pytorch(line["network"]), *cells, *gains, plain, *PAPER_TABLE_5.get(line["network"], ["-"] * 3)])
    gains = ["gain, power-of-two", "fit", "plain over fit"]
    paper = ["the paper (P100, TensorFlow, ms): undivided", "powerOfTwo", "all"]
    return table(["network", "plain, no limit", "undivided", "power-of-two", "fit", *gains, *paper], rows)


def table_5_gain(line: Json, sizes: str) -> str:
    """Undivided over divided: iterations, and in parentheses the convolutions alone."""
    step, alone = (line["undivided"][of] / line[sizes][of] for of in ("step_ms", "convolutions_ms"))
    return f"{step:.2f} ({alone:.2f})"


def table_5_kernels() -> str:
    """What became of the kernels of Table V's networks under fit, and the peaks that differ from plain's."""
    [kernels] = printed("table5-kernels")
    peaks = printed("table5-peaks")
    rows = [
        [in_pytorch(line["network"]), *("{plain} to {fit}".format(**line[of]) if of in line else "-" for of in ("torch_gib", "driver_gib"))]
        for line in peaks
    ]
    sentence = (
        f"Of the {kernels['kernels']} kernels of the four networks under fit, {kernels['divided']} are divided, "
        f"{kernels['other_algorithm']} use another\nalgorithm and {kernels['own']} use PyTorch's own. Peaks that change, plain to fit:\n\n"
    )
    return sentence + table(["network", "torch's peak (GiB)", "the driver's"], rows)


PAPER_TUNING = {"power-of-two": "3.82 s", "all": "34.16 s"}


def tuning() -> str:
    """Seconds to tune with an empty cache, limit 64 MiB."""
    rows = []
    for line in printed("tuning"):
        network = {"alexnet-1col": "AlexNet in one column 256", "resnet18": "ResNet-18 128"}[line["network"]]
        paper = PAPER_TUNING.get(line["sizes"], "-") if line["network"] == "alexnet-1col" else "-"
        seconds = [f"{line['seconds']} s", f"{line.get('device_seconds', line['seconds'])} s"]
        rows.append([network, line["sizes"], str(line["gpus"]), f"{line.get('measurements', '-')}", *seconds, line["date"], paper])
    head = ["network, mini-batch", "sizes", "GPUs", "measurements", "time", "of all GPUs together", "date", "the paper (P100)"]
    return table(head, rows)


def unequal() -> str:
    """What a planned mini-batch gains over unequal GPUs, and an all-reduce among them."""
    [line] = printed("unequal")
    predicted, measured = (line[f"{kind}_ms"]["even"] / line[f"{kind}_ms"]["planned"] for kind in ("predicted", "measured"))
    steps = [f"{line[f'{kind}_ms'][of]} ms" for kind in ("measured", "predicted") for of in ("even", "planned")]
    return (
        f"Over {line['devices']}, a planned step of ResNet-18 256 ({' + '.join(map(str, line['planned']))})\nis {measured:.2f} times as "
        f"fast as the even one: {steps[0]} and {steps[1]}, batch norm of each rank\n(predicted from each device's steps: {steps[2]} and "
        f"{steps[3]}, {predicted:.2f}). An all-reduce of as many bytes as the gradients have\n"
        f"({line['all_reduce_mb']} MB) takes {line['all_reduce_ms']} ms there.\n"
    )


def two_ranks() -> str:
    """ResNet-50 on two GPUs, plain and under `run`: medians of pairs."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for line in printed("ddp"):
        found.setdefault((line["date"], "none"), []).append((line["plain_ms"], line["run_ms"], line["tuned_s"]))
    for line in read(MEASURED / "defaults.jsonl"):
        if line["folder"].startswith("ddp"):
            pairs = found.setdefault((line["date"], f"of {line['shipped']} kernels"), [])
            pairs.append((line["plain"]["step_ms"], line["run"]["step_ms"], line["tuned_s"]))
    rows = []
    for (date, shipped), pairs in found.items():
        plain, run, tuned = (median(of) for of in zip(*pairs, strict=True))
        ratio = median(run / plain for plain, run, _ in pairs)
        rows.append([shipped, str(len(pairs)), f"{plain:.1f}", f"{run:.1f}", f"{ratio:.2f}", f"{tuned:.1f} s", date])
    return table(["decisions that ship", "pairs", "step (ms), plain", "under `run`", "run over plain", "tuned for", "date"], rows)


def solve() -> str:
    """What was timed of solving for one total."""
    *solver, command = printed("solve")
    paper = {32: "5.46 ms (GLPK, 562 variables)"}
    found = [(f"ResNet-50 {line['batch']}, solver alone", line, f"{line['solver_us'] / 1e3:.3f}", paper.get(line["batch"], "-")) for line in solver]
    found.append(("ResNet-152 128, the whole replayed command", command, str(command["command_ms"]), "716 ms (GLPK)"))
    rows = [[name, str(line["kernels"]), f"{line['total_mib']} MiB", f"{time} ms", stated] for name, line, time, stated in found]
    return table(["network, mini-batch", "kernels", "total", "time", "the paper"], rows)


TABLES = {
    "mucudnn-tuning-run": tuning,
    "mucudnn-iterations": iterations,
    "mucudnn-totals-run": totals,
    "mucudnn-one-byte-run": one_byte_too_little,
    "mucudnn-totals-optimized": optimized_totals,
    "mucudnn-solve": solve,
    "mucudnn-table-5": table_5,
    "mucudnn-table-5-kernels": table_5_kernels,
    "mucudnn-unequal": unequal,
    "mucudnn-two-ranks": two_ranks,
    "vdnn-beside-copies": beside_copies,
    "vdnn-run": run_policies,
    "vdnn-run-memory": run_memory,
    "vdnn-run-whole": whole_card,
}
