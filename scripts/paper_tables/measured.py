"""Tables and sentences of what ran on a device, from the lines of docs/measured."""

from collections.abc import Callable
from statistics import median
from typing import Any

from measured_lines import read

from .tables import GIB, ROOT, table

Json = dict[str, Any]
MEASURED = ROOT / "docs/measured"
NETWORKS = ["alexnet:256", "resnet18:128", "resnet50:64"]
SIZES = ["undivided", "power-of-two", "fit", "all"]


def lines() -> dict[str, dict[str, Json]]:
    """By name, then by NETWORK:BATCH: the steps of each job of scripts/gpu-papers.sh."""
    found = read(MEASURED / "papers.jsonl")
    return {line["name"]: {step["case"].rsplit(":", 1)[0]: step for step in line.get("steps", [])} for line in found}


def printed(table: str, file: str = "papers") -> list[Json]:
    """The lines of a table that were transcribed from a run's output."""
    return [line for line in read(MEASURED / f"{file}-printed.jsonl") if line["table"] == table]


def step_of(measured: dict[str, dict[str, Json]], job: str, network: str) -> Json | None:
    """A network's step in a job of several, or in a separate one."""
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
    """Whole PyTorch iterations with one total, plain without a limit and undivided with equal shares."""
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
    """Times of dynamic and overlap where everything fits, and the losses of all(m) and VGG-516 within 12 GiB."""
    [line] = printed("whole-card", "vdnn")
    faster, steps = line["faster"], steps_by_policy()
    slower = [of["all(m)"]["step_ms"] / of["oracle"]["step_ms"] for of in steps.values() if "step_ms" in of.get("all(m)", {})]
    deepest = steps["vgg516:32"]
    moved, computing = deepest["dynamic"]["offloaded_gib"], deepest["oracle"]["step_ms"] / 1e3
    return (
        f"With the whole card as budget, {' and '.join(line['policies'])} move nothing and match the oracle to "
        f"{line['off_percent_at_most']}% ({named(faster['case'])} {faster['variant']}\nis {faster['percent']}% faster) wherever they "
        f"were run: all but {', '.join(map(named, line['not_run']))} and VGG-216.\n"
        f"Within 12 GiB, steps under all(m) take {min(slower):.0f} to {max(slower):.0f} times the oracle's time. VGG-516 moves "
        f"2 x {moved:.0f} GiB during {computing:.1f} s\nof computing: {2 * moved / computing:.0f} GiB/s.\n"
    )


def run_dynamic(case: str) -> str:
    """The fraction of the oracle's speed that a step under dynamic had."""
    step = steps_by_policy().get(case.replace("-1col", ""), {}).get("dynamic")
    return f"{step['of_oracle']:.2f}" if step else "-"


BOTH_WAYS = "all(p), copies both ways half of the time"


def computing() -> dict[str, dict[str, float]]:
    """By NETWORK:BATCH, then by policy: microseconds that a step's computations take together."""
    found: dict[str, dict[str, float]] = {}
    for line in read(MEASURED / "vdnn.jsonl"):
        if "kernels_us" in line and (line["variant"] == "oracle") == line["whole"]:
            found.setdefault(line["case"], {})[line["variant"]] = line["kernels_us"]
    return found


def beside_copies() -> str:
    """How much longer computations take while copies run."""
    rows: dict[str, dict[str, str]] = {}
    for line in printed("beside-copies", "vdnn"):
        rows.setdefault(line["case"], {})[line["way"]] = f"{line['longer_percent']}%"
    for case, steps in computing().items():
        rows.setdefault(case, {})[BOTH_WAYS] = f"{100 * (steps['all(p)'] / steps['oracle'] - 1):.1f}%"
    ways = list(dict.fromkeys(line["way"] for line in printed("beside-copies", "vdnn")))
    ordered = sorted(rows.items(), key=lambda item: place(item[0]))
    return table(["network, mini-batch", *ways], [[named(case), *(found.get(way, "-") for way in ways)] for case, found in ordered])


PAPER_TABLE_5 = {
    "AlexNet b256": ["229.0", "186.0 (1.23)", "185.0 (1.24)"],
    "ResNet-50 b64": ["318.0", "302.0 (1.05)", "302.0 (1.05; A: 1.06)"],
    "DenseNet-40 b256, k = 40": ["639.0", "579.0 (1.10)", "574.0 (1.11)"],
}


TABLE_5_ROWS = [*PAPER_TABLE_5, "ResNet-18 b128"]
# The page's name of a network that scripts/gpu-papers.sh ran as NETWORK:BATCH.
TABLE_5 = {"AlexNet b256": "alexnet:256", "ResNet-50 b64": "resnet50:64", "ResNet-18 b128": "resnet18:128"}


def table_5_steps() -> dict[str, dict[str, Json]]:
    """By network, then `plain` or the sizes: steps within 64 MiB a kernel."""
    measured = lines()
    found = {}
    for name, case in TABLE_5.items():
        jobs = {"plain": "iterations-plain"} | {sizes: f"iterations-64-{sizes}" for sizes in SIZES[:3]}
        found[name] = {what: measured[job][case] for what, job in jobs.items()}
    found |= {line["network"]: line for line in printed("table5")}
    return {name: found[name] for name in TABLE_5_ROWS}


def table_5() -> str:
    """Whole iterations within 64 MiB a kernel, the convolutions alone in parentheses."""
    found = table_5_steps()
    rows = []
    for name, steps in found.items():
        run = [steps.get(of) for of in ("plain", *SIZES[:2], "fit")]
        cells = [f"{step['step_ms']:.1f} ({step['convolutions_ms']:.1f})" if step else "-" for step in run]
        gains = ["-" if sizes not in steps else table_5_gain(steps, sizes) for sizes in ("power-of-two", "fit")]
        plain = f"{steps['plain']['step_ms'] / steps['fit']['step_ms']:.2f}"
        rows.append([in_pytorch(name), *cells, *gains, plain, *PAPER_TABLE_5.get(name, ["-"] * 3)])
    gains = ["gain, power-of-two", "fit", "plain over fit"]
    paper = ["the paper (P100, TensorFlow, ms): undivided", "powerOfTwo", "all"]
    return table(["network", "plain, no limit", "undivided", "power-of-two", "fit", *gains, *paper], rows)


def table_5_gain(steps: Json, sizes: str) -> str:
    """Undivided over divided: iterations, and in parentheses the convolutions alone."""
    step, alone = (steps["undivided"][of] / steps[sizes][of] for of in ("step_ms", "convolutions_ms"))
    return f"{step:.2f} ({alone:.2f})"


def table_5_kernels() -> str:
    """The kernels of Table V's networks under fit, by decision, and the peaks of plain and fit."""
    [kernels] = printed("table5-kernels")
    of_densenet = {line["network"]: line for line in printed("table5-peaks")}
    rows = []
    for name in TABLE_5_ROWS:
        if name in TABLE_5:
            plain, fit = (table_5_steps()[name][what] for what in ("plain", "fit"))
            peaks = [f"{plain[of]:.2f} to {fit[of]:.2f}" for of in ("torch_peak_gib", "driver_peak_gib")]
        else:
            peaks = ["-", "{plain} to {fit}".format(**of_densenet[name]["driver_gib"])]
        rows.append([in_pytorch(name), *peaks])
    sentence = (
        f"Of the {kernels['kernels']} kernels of the four networks under fit, {kernels['divided']} are divided, "
        f"{kernels['other_algorithm']} use another\nalgorithm and {kernels['own']} use PyTorch's own (2026-11-21). Peaks, plain to fit:\n\n"
    )
    return sentence + table(["network", "torch's peak (GiB)", "the driver's"], rows)


PAPER_TUNING = {"power-of-two": "3.82 s", "all": "34.16 s"}


def tuning_lines() -> list[Json]:
    """By network and sizes: GPUs, measurements, seconds, and seconds of all GPUs together."""
    found = []
    for line in read(MEASURED / "papers.jsonl"):
        if line["name"].startswith("tuning-"):
            seconds = round(line["wall_time_us"] / 1e6, 2)
            one = {"network": line["network"], "sizes": line["policy"], "gpus": 1, "measurements": line["measured"]}
            found.append(one | {"seconds": seconds, "date": line["date"]})
    return found + printed("tuning")


def tuning() -> str:
    """Seconds to tune with an empty cache, limit 64 MiB."""
    rows = []
    for line in tuning_lines():
        network = {"alexnet-1col": "AlexNet in one column 256", "resnet18": "ResNet-18 128"}[line["network"]]
        paper = PAPER_TUNING.get(line["sizes"], "-") if line["network"] == "alexnet-1col" else "-"
        seconds = [f"{line['seconds']} s", f"{line.get('device_seconds', line['seconds'])} s"]
        rows.append([network, line["sizes"], str(line["gpus"]), str(line["measurements"]), *seconds, line["date"], paper])
    head = ["network, mini-batch", "sizes", "GPUs", "measurements", "time", "of all GPUs together", "date", "the paper (P100)"]
    return table(head, rows)


def unequal() -> str:
    """The gain of a planned mini-batch over unequal GPUs, and the time of an all-reduce."""
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
    """Times of solving for one total."""
    *solver, command = printed("solve")
    paper = {32: "5.46 ms (GLPK, 562 variables)"}
    found = [(f"ResNet-50 {line['batch']}, solver alone", line, f"{line['solver_us'] / 1e3:.3f}", paper.get(line["batch"], "-")) for line in solver]
    found.append(("ResNet-152 128, the whole replayed command", command, str(command["command_ms"]), "716 ms (GLPK)"))
    rows = [[name, str(line["kernels"]), f"{line['total_mib']} MiB", f"{time} ms", stated] for name, line, time, stated in found]
    return table(["network, mini-batch", "kernels", "total", "time", "the paper"], rows)


def parallel() -> str:
    """Profiles on several GPUs of a machine: seconds of the command, what each GPU measured, and how far times agree."""
    rows = []
    for line in printed("parallel"):
        one, two, four = line["seconds"].values()
        tenth, middle, ninth = line["times"]
        figures = [f"{one} s", f"{two} s, {one / two:.2f}x", f"{four} s, {one / four:.2f}x"]
        rows.append([line["profiled"], line["sizes"], *figures, ", ".join(map(str, line["of_each"])), f"{tenth:.3f}, {middle:.3f}, {ninth:.3f}"])
    head = ["profiled", "sizes", "1 GPU", "2 GPUs", "4 GPUs", "measurements of each of 4", "times over one GPU's: tenth, median, ninth tenth"]
    return table(head, rows)


def parallel_on_two() -> str:
    """The same on one and on two GPUs, from lines of the runs."""
    names = {"conv2-all": ("conv2 of AlexNet in one column 256, forward", "all"), "alexnet": ("AlexNet in two groups 256", ""), "resnet50": ("ResNet-50 256", "")}
    runs: dict[str, dict[int, Json]] = {}
    for line in read(MEASURED / "parallel.jsonl"):
        runs.setdefault(line["name"], {})[len(line["devices"])] = line
    rows = []
    for name, by_count in runs.items():
        profiled, sizes = names.get(name) or (names[name.partition("-")[0]][0], name.partition("-")[2])
        one, two = by_count[1], by_count[2]
        seconds = [f"{one['wall_s']:.1f} s", f"{two['wall_s']:.1f} s, {one['wall_s'] / two['wall_s']:.2f}x"]
        each = ", ".join(f"{device['measured']} in {device['s']:.1f} s" for device in two["devices"])
        rows.append([profiled, sizes, *seconds, each, ", ".join(f"{ratio:.3f}" for ratio in two["ratio"])])
    return table(["profiled", "sizes", "1 GPU", "2 GPUs", "each of 2", "times over one GPU's: tenth, median, ninth tenth"], rows)


def verified(network: str, batch: int) -> list[Json]:
    """The lines of `tightfit verify` for a network on a device, one for each kernel and one for each group of kernels."""
    return [line for line in read(MEASURED / "verified.jsonl") if (line["network"], line["batch"]) == (network, batch)]


def concurrent() -> str:
    """Groups of kernels with no path between them, one after another and at once."""
    found = []
    for line in printed("concurrent"):
        found.append((f"16, 256 MiB in total ({line['date']})", line["groups"], line["sequential_ms"], line["concurrent_ms"]))
    groups = [line for line in verified("googlenet", 128) if "group" in line]
    for words, some in [("{} of four", 4), ("{} of two", 2), ("all {}", None)]:
        those = [line for line in groups if some in (None, line["streams"])]
        alone, together = (sum(line[time] for line in those) / 1e3 for time in ("alone_measured_time_us", "measured_time_us"))
        found.append((f"128, 1 GiB in total, forward ({those[0]['date']})", words.format(len(those)), alone, together))
    rows = []
    for case, words, alone, together in found:
        rows.append([f"GoogLeNet {case}", words, f"{alone:.2f}", f"{together:.2f}", f"{alone / together:.2f}"])
    gains = [line["alone_measured_time_us"] / line["measured_time_us"] for line in groups]
    same = sum(line["max_relative_error_alone"] == 0 for line in groups)
    words = (
        f"Of the {len(groups)} groups at 128 the best gains {max(gains):.2f}, the worst {min(gains):.2f}; "
        f"outputs are the same to the bit in {same}.\n"
    )
    return table(["network, mini-batch, workspace", "groups", "in turn (ms)", "at once (ms)", "gain"], rows) + "\n" + words


def errors() -> str:
    """The largest differences from 64-bit arithmetic, over the largest output, of the kernels that `verify` ran."""
    networks = [("AlexNet in one column 256, 64 MiB", "alexnet-1col", 256), ("GoogLeNet 128, forward, 1 GiB in total", "googlenet", 128)]
    rows = []
    for name, network, batch in networks:
        kernels = [line for line in verified(network, batch) if "layer" in line]
        large = [line for line in kernels if (line["network"], line["layer"]) == ("alexnet-1col", "conv2") or line["layer"].endswith(".5x5")]
        for words, those in [("5x5 filters", large), ("all others", [line for line in kernels if line not in large])]:
            of = [max(line[f"{whose}max_relative_error_reference"] for line in those) for whose in ("", "undivided_", "class_")]
            divided = sum(len(line["parts"]) > 1 for line in those)
            within = sum(line["max_relative_error_reference"] <= 2 * line["class_max_relative_error_reference"] for line in those)
            figures = [f"{figure:.1e}" for figure in of]
            rows.append([f"{name}: {words}", f"{divided} of {len(those)}", *figures, f"{within} of {len(those)}"])
    return table(["f32", "divided", "ours", "the undivided choice", "undivided, of the same class", "within twice that"], rows)


def printed_errors() -> str:
    """The same, of runs whose printed text was kept."""
    rows = [[line["kernels"], line["divided"], line["undivided"]] for line in printed("errors")]
    return table(["kernels", "divided", "undivided choice"], rows)


def fused() -> str:
    """Fused calls, plain and under `run`."""
    runs = [line for line in read(MEASURED / "interfaces.jsonl") if line["stage"] == "fused"]
    plain = [line for line in runs if line["plain"] == "0 0"]
    same = [line for line in plain if line["run"] == line["plain"] and line["bits"] == "equal" and line["counted"]]
    refused = [line for line in runs if line["plain"] != "0 0"]
    assert all(line["run"] == line["plain"] for line in refused)
    of = ", ".join(str(number) for number in sorted({line["algorithm"] for line in plain}))
    no = ", ".join(str(number) for number in sorted({line["algorithm"] for line in refused}))
    return (
        f"Algorithms {of}, with and without ReLU, in three limits: {len(same)} of {len(plain)} runs end with plain cuDNN's status and bits, "
        f"and\nthe report counts each; {sum(line['lent'] for line in plain)} were lent workspace. Algorithm {no} does not support a 5x5 filter, "
        f"with `run` or without ({runs[0]['date']}).\n"
    )


def legacy() -> str:
    """A C program on the legacy interface, plain and under `run`."""
    runs = [line for line in read(MEASURED / "interfaces.jsonl") if line["stage"] == "legacy"]
    rows = []
    for line in runs:
        told = line["told"]
        time = f"{told['ms']:.2f} ms" if told["ms"] else "-"
        ran = "{parts}, {algorithm}".format(**line["configuration"]) if "configuration" in line else "-"
        operation = {"data": "backward-data", "filter": "backward-filter"}.get(line["operation"], line["operation"])
        how = {"get": "Get_v7", "find": "Find", "ex": "FindEx, 64 MiB"}[line["how"]]
        cells = [told["algorithm"], f"{told['workspace_bytes'] / 2**20:.1f}", time, ran, f"{line['relative']:.0e}" if line["relative"] else "none"]
        rows.append([operation, how, line["label"], *cells])
    return table(["operation", "asked by", "", "told: algorithm", "workspace (MiB)", "time", "`run` divides into", "largest error"], rows)


TABLES = {
    "mucudnn-parallel": parallel,
    "mucudnn-parallel-two": parallel_on_two,
    "mucudnn-concurrent": concurrent,
    "mucudnn-errors": errors,
    "mucudnn-errors-printed": printed_errors,
    "mucudnn-fused": fused,
    "mucudnn-legacy": legacy,
    "mucudnn-tuning-run": tuning,
    "mucudnn-iterations": iterations,
    "mucudnn-totals-run": totals,
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
