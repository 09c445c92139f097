"""Replays of the mu-cuDNN paper: CLUSTER 2018 (C), arXiv (A), IPSJ 2017 (I)."""

import math
from typing import Any

from .tables import GIB, MIB, Answers, Row, Table, ms, table

RECORDED = "profiles/recorded/h200-"
MAIN = f"replay:{RECORDED}2026-11-21.jsonl.gz"
LEGACY_ALL = f"replay:{RECORDED}legacy-alexnet-1col-all.jsonl.gz"
BOTH_ALL = f"replay:{RECORDED}alexnet-1col-all.jsonl.gz"
RESNET18_ALL = f"replay:{RECORDED}resnet18-all.jsonl.gz"
RESNET50_ALL = f"replay:{RECORDED}resnet50-all.jsonl.gz"
# Every size of AlexNet's forward kernels in one column.
EVERY_SIZE = f"replay:{RECORDED}2026-11-21-all-sizes.jsonl.gz"
ONE_COLUMN = "optimize alexnet-1col --batch 256"
TWO_GROUPS = "optimize alexnet --batch 256"
LIMITS = [8, 64, 512]

Json = dict[str, Any]


def workspace(answer: Json, of: str = "") -> float:
    """Bytes of all workspaces, one for each kernel: of the result, or of the best undivided algorithms."""
    return sum((kernel[of] if of else kernel)["workspace_bytes"] for kernel in answer["kernels"])


def tensors(problem: str) -> int:
    """Bytes of a convolution's input, output and filters in f32, from its text."""
    words = {word.rstrip("0123456789"): int(word.lstrip("abcdefghijklmnopqrstuvwxyz")) for word in problem.split()[1:-1]}
    n, c, h, w, k, r, s = (words[name] for name in ("n", "c", "h", "w", "k", "r", "s"))
    pad, stride, groups = words.get("pad", 0), words.get("stride", 1), words.get("groups", 1)
    out = math.prod((edge + 2 * pad - window) // stride + 1 for edge, window in ((h, r), (w, s)))
    return 4 * (n * c * h * w + n * k * out + k * (c // groups) * r * s)


def by_layer(answer: Json, of: str = "") -> dict[str, tuple[int, float, float]]:
    """Of each layer, its three kernels together: tensors and their gradients, workspace [bytes], time [us]."""
    layers: dict[str, tuple[int, float, float]] = {}
    for kernel in answer["kernels"]:
        one = kernel[of] if of else kernel
        _, taken, time = layers.get(kernel["layer"], (0, 0, 0))
        data = 2 * tensors(kernel["problem"])
        layers[kernel["layer"]] = (data, taken + one["workspace_bytes"], time + one["time_us"])
    return layers


def figure_1(layer: str):
    def read(*answers: Json) -> list[str]:
        found = [by_layer(answer, "undivided")[layer] for answer in answers]
        data = f"{found[0][0] / MIB:.0f}"
        return [data, *(f"{taken / MIB:.0f} / {ms(time)}" for _, taken, time in found)]

    return read


FIGURE_1 = Table(
    "mucudnn-figure-1",
    ["layer", "tensors and gradients (MiB)", "8 MiB: workspace (MiB) / time (ms)", "64 MiB", "512 MiB"],
    [f"{TWO_GROUPS} --workspace {limit}MiB --sizes undivided --backend {MAIN}" for limit in LIMITS],
    [Row([f"conv{n}"], read=figure_1(f"conv{n}")) for n in range(1, 6)],
    lambda *_: [],
    shown=f"{TWO_GROUPS} --workspace LIMIT --sizes undivided --backend {MAIN}",
)


def policies(*answers: Json) -> list[str]:
    """Times under each rule of sizes, and the gain of the last over the first."""
    times = [answer["time_us"] for answer in answers]
    return [*(ms(time) for time in times), f"{times[0] / times[-1]:.2f}"]


PAPER_GAINS = {8: "none", 64: "2.10 (K80), 1.63 (P100), 1.60 (V100; arXiv: 1.63)", 512: "none (K80, P100)"}


def figure_9(name: str, of: str, profile: str, sizes: list[str], paper: dict[int, str]) -> Table:
    limit = f"{of} --workspace {{limit}}MiB --sizes"
    return Table(
        name,
        ["limit per kernel", *(f"{each} (ms)" for each in sizes), f"{sizes[-1]} over undivided", "the paper, convolutions"],
        [f"{limit} {each} --backend {profile}" for each in sizes],
        [Row([f"{edge} MiB"], {"limit": str(edge)}, [paper.get(edge, "-")]) for edge in LIMITS],
        policies,
        shown=f"{of} --workspace LIMIT --sizes SIZES --backend {profile}",
    )


RESNET18 = "optimize resnet18 --batch 128"
RESNET50 = "optimize resnet50 --batch 64"
THREE_SIZES = ["undivided", "power-of-two", "fit"]
EVERY_RULE = [*THREE_SIZES, "all"]
PAPER_RESNET18 = {64: "1.21 (P100, `all`; 1.11 of the whole iteration)", 512: "undivided did not fit the GPU"}
FIGURE_9 = [
    figure_9("mucudnn-figure-9-all", ONE_COLUMN, LEGACY_ALL, EVERY_RULE, PAPER_GAINS),
    figure_9("mucudnn-figure-9-both", ONE_COLUMN, BOTH_ALL, EVERY_RULE, PAPER_GAINS),
    figure_9("mucudnn-figure-9-groups", TWO_GROUPS, MAIN, THREE_SIZES, PAPER_GAINS),
    figure_9("mucudnn-figure-9-resnet18", RESNET18, MAIN, THREE_SIZES, PAPER_RESNET18),
    figure_9("mucudnn-figure-9-resnet18-all", RESNET18, RESNET18_ALL, EVERY_RULE, PAPER_RESNET18),
    figure_9("mucudnn-figure-9-resnet50", RESNET50, MAIN, THREE_SIZES, {}),
    figure_9("mucudnn-figure-9-resnet50-all", RESNET50, RESNET50_ALL, EVERY_RULE, {}),
    figure_9("mucudnn-arxiv-11-densenet40", "optimize densenet40 --batch 256", MAIN, ["undivided", "fit"], {}),
]


def figure_10_cells(answer: Json) -> list[str]:
    [kernel] = answer["kernels"]
    parts = kernel["configuration"]
    sizes = " + ".join(str(part["micro_batch"]) for part in parts)
    if len({(part["micro_batch"], part["algorithm"]) for part in parts}) == 1 and len(parts) > 1:
        sizes = f"{len(parts)} x {parts[0]['micro_batch']}"
    algorithms = " + ".join(dict.fromkeys(f"`{part['algorithm']}`" for part in parts))
    gain = kernel["undivided"]["time_us"] / kernel["time_us"]
    return [f"{sizes}, {algorithms}", f"{kernel['workspace_bytes'] / MIB:.1f}", f"{kernel['time_us'] / 1e3:.3f}", f"{gain:.2f}"]


CONV2 = f"{ONE_COLUMN} --layers conv2 --operations forward"
FIGURE_10 = Table(
    "mucudnn-figure-10-one-column",
    ["limit", "sizes", "configuration", "workspace (MiB)", "time (ms)", "over undivided"],
    [f"{CONV2} --workspace {{limit}}MiB --sizes {{sizes}} --backend {{profile}}"],
    [
        *(Row(["64 MiB", sizes], {"limit": "64", "sizes": sizes, "profile": MAIN}) for sizes in THREE_SIZES),
        Row(
            ["64 MiB", "all (forward kernels recorded apart)"],
            {"limit": "64", "sizes": "all --no-baseline", "profile": EVERY_SIZE},
        ),
        *(Row([f"{limit} MiB", "fit"], {"limit": str(limit), "sizes": "fit", "profile": MAIN}) for limit in (16, 32, 128, 256, 338, 512)),
    ],
    figure_10_cells,
    shown=f"{CONV2} --workspace LIMIT --sizes SIZES --backend {MAIN}",
)


def wr_and_wd(wr: Json, wd: Json) -> list[str]:
    ratio = wr["undivided_time_us"] / wd["time_us"]
    used = f"{wd['workspace_bytes'] / MIB:.0f} MiB"
    return [ms(wr["undivided_time_us"]), ms(wr["time_us"]), ms(wd["time_us"]), used, f"{ratio:.2f}"]


def figure_11(name: str, of: str, shares: dict[str, int], paper: dict[int, str]) -> Table:
    """`shares`: each kernel's limit, and as much in all [MiB]; `paper`: by the total, what the paper has."""
    return Table(
        name,
        ["each", "in all", "WR undivided (ms)", "WR, fit", "WD, fit", "WD uses", "WD over WR undivided", "the paper (P100)"],
        [f"{of} --workspace {{each}} --backend {MAIN}", f"{of} --total-workspace {{total}}MiB --backend {MAIN}"],
        [
            Row([each, f"{total} MiB"], {"each": each.replace(" ", ""), "total": str(total)}, [paper.get(total, "-")])
            for each, total in shares.items()
        ],
        wr_and_wd,
        shown=f"{of} --workspace EACH --backend {MAIN}`, and `tightfit {of} --total-workspace ALL --backend {MAIN}",
    )


def shares(kernels: int, limits: list[int]) -> dict[str, int]:
    return {f"{limit} MiB": limit * kernels for limit in limits}


PAPER_ALEXNET = {120: "1.38; whole iterations 1.24"}
PAPER_RESNET50 = {2544: "1.14; whole iterations 1.05"}
FIGURE_11 = [
    figure_11("mucudnn-figure-11-alexnet", ONE_COLUMN, shares(15, [8, 16, 32, 64, 512]), PAPER_ALEXNET),
    figure_11("mucudnn-figure-11-alexnet-groups", TWO_GROUPS, shares(15, LIMITS), PAPER_ALEXNET),
    figure_11("mucudnn-figure-11-resnet50", "optimize resnet50 --batch 32", shares(159, [8, 16, 32, 64]), PAPER_RESNET50),
    figure_11("mucudnn-figure-11-resnet152", "optimize resnet152 --batch 128", {f"{4960 * 2**10 // 465} KiB": 4960}, {}),
]


# The total, its network, the ratio that is the project's goal, and a wider limit of each kernel to compare with.
TOTALS = [
    ("AlexNet one column b256 f32", ONE_COLUMN, 120, "1.22", ""),
    ("the same, tf32", f"{ONE_COLUMN} --types tf32", 120, "1.8", ""),
    ("the same, f16-f32", f"{ONE_COLUMN} --types f16-f32", 120, "3.0", ""),
    ("AlexNet two groups b256 f32", TWO_GROUPS, 120, "none", ""),
    ("AlexNet one column b256 f32", ONE_COLUMN, 240, "none", ""),
    ("ResNet-50 b32 f32, 159 kernels", "optimize resnet50 --batch 32", 2544, "1.15", "32"),
    ("ResNet-50 b64 f32", RESNET50, 2544, "1.15", "32"),
    ("ResNet-152 b128 f32, 465 kernels", "optimize resnet152 --batch 128", 4960, "none", ""),
]


def total(wd: Json, *wider: Json) -> list[str]:
    undivided, ratio = ms(wd["undivided_time_us"]), f"{wd['speedup']:.2f}"
    for wr in wider:
        undivided += f" (at 32 MiB each: {ms(wr['time_us'])})"
        ratio += f" ({wr['time_us'] / wd['time_us']:.2f})"
    return [undivided, ms(wd["time_us"]), ratio, f"{100 * wd['gap']:.0f}%"]


TOTALS_TABLE = Table(
    "mucudnn-totals",
    ["network", "total", "WR undivided (ms)", "WD (ms)", "ratio", "gap", "goal"],
    [],
    [
        Row(
            [name, f"{size} MiB"],
            commands=[
                f"{of} --total-workspace {size}MiB --backend {MAIN}",
                *([f"{of} --workspace {wider}MiB --sizes undivided --backend {MAIN}"] if wider else []),
            ],
            after=[goal],
        )
        for name, of, size, goal, wider in TOTALS
    ],
    total,
    shown=f"optimize NETWORK --batch N --types TYPES --total-workspace ALL --backend {MAIN}",
)


def memory_rows(layers: list[str]) -> list[Row]:
    def read_of(layer: str):
        def read(plain: Json, divided: Json) -> list[str]:
            (data, before, _), (_, after, _) = by_layer(plain, "undivided")[layer], by_layer(divided)[layer]
            cells = [f"{value / MIB:.0f}" for value in (data, before, after)]
            return [*cells, f"{(data + before) / (data + after):.2f}"]

        return read

    return [Row([layer], read=read_of(layer)) for layer in layers]


def slower(name: str, paper: str):
    def last(answers: list[list[Json]]) -> list[list[str]]:
        plain, divided = answers[0]
        before, after = by_layer(plain, "undivided"), by_layer(divided)
        most = max((data + taken) / (data + after[layer][1]) for layer, (data, taken, _) in before.items())
        data = sum(one[0] for one in before.values())
        cells = [data, workspace(plain, "undivided"), workspace(divided)]
        ratio = divided["time_us"] / plain["undivided_time_us"]
        text = {"alexnet": "AlexNet", "resnet18": "ResNet-18"}[name]
        row = [
            f"**all of {text}**: {ms(plain['undivided_time_us'])} ms, then {ms(divided['time_us'])} ({ratio:.2f}x; the paper 1.17x)",
            *(f"{value / MIB:.0f}" for value in cells),
            f"up to {most:.2f} (the paper: {paper})",
        ]
        return [row]

    return last


def arxiv_12(name: str, of: str, layers: list[str], paper: str) -> Table:
    return Table(
        f"mucudnn-arxiv-12-{name}",
        ["layer", "tensors and gradients (MiB)", "workspaces, 512 MiB undivided", "64 MiB, fit", "memory, less by a factor of"],
        [f"{of} --workspace 512MiB --sizes undivided --backend {MAIN}", f"{of} --workspace 64MiB --backend {MAIN}"],
        memory_rows(layers),
        lambda *_: [],
        shown=f"{of} --workspace 512MiB --sizes undivided --backend {MAIN}`, and `tightfit {of} --workspace 64MiB --backend {MAIN}",
        last=slower(name, paper),
    )


STAGES = [f"l{stage}.{block}.c{n}" for stage in range(1, 5) for block in range(2) for n in (1, 2)]
ARXIV_12 = [
    arxiv_12("alexnet", TWO_GROUPS, [f"conv{n}" for n in range(1, 6)], "3.43"),
    arxiv_12("resnet18", "optimize resnet18 --batch 128", ["conv1", *STAGES], "2.73"),
]


def share(answer: Json) -> list[str]:
    """The share of the workspace that conv2 and conv3 get, and the most of conv4 and conv5."""
    of = {layer: taken for layer, (_, taken, _) in by_layer(answer).items()}
    two = 100 * (of["conv2"] + of["conv3"]) / sum(of.values())
    most = max(k["workspace_bytes"] for k in answer["kernels"] if k["layer"] in ("conv4", "conv5"))
    return [*(f"{of[f'conv{n}'] / MIB:.1f}" for n in range(1, 6)), f"{two:.1f}%", f"{most / MIB:.1f}"]


FIGURE_12 = Table(
    "mucudnn-figure-12",
    ["network", "conv1 (MiB)", "conv2", "conv3", "conv4", "conv5", "conv2 and conv3", "largest of conv4, conv5", "the paper (P100)"],
    [f"optimize {{network}} --batch 256 --types {{types}} --total-workspace 120MiB --backend {MAIN}"],
    [
        Row([f"{text}, {types}"], {"network": network, "types": types}, [paper])
        for network, types, text, paper in [
            ("alexnet", "f32", "AlexNet in two groups", "93.7%, at most 3 MiB"),
            ("alexnet-1col", "f32", "AlexNet in one column", "-"),
            ("alexnet-1col", "tf32", "the same", "-"),
        ]
    ],
    share,
    shown=f"optimize NETWORK --batch 256 --types TYPES --total-workspace 120MiB --backend {MAIN}",
)


def gib(of: str = ""):
    return lambda answer: [f"{workspace(answer, of) / GIB:.2f} GiB"]


def slowdown(wide: Json, narrow: Json) -> str:
    return f"{100 * (narrow['time_us'] / wide['undivided_time_us'] - 1):+.0f}%"


def cost(answer: Json) -> list[str]:
    found = answer["profiling"]
    return [f"{found['measurements']}", f"{found['time_us'] / 1e6:.2f} s"]


TUNING = Table(
    "mucudnn-tuning",
    ["interfaces", "sizes", "candidates", "one call of each", "the paper (P100, whole tuning)"],
    [f"{ONE_COLUMN} --workspace 64MiB --sizes {{sizes}} --no-baseline --backend {{profile}}"],
    [
        Row([interfaces, sizes], {"sizes": sizes, "profile": profile}, [paper])
        for interfaces, profile in [("legacy", LEGACY_ALL), ("both", BOTH_ALL)]
        for sizes, paper in [("all", "34.16 s"), ("power-of-two", "3.82 s"), ("fit", "-")]
    ],
    cost,
    shown=f"{ONE_COLUMN} --workspace 64MiB --sizes SIZES --no-baseline --backend replay:PROFILE",
)

MIXED = "split --network resnet18 --batch 32"
TIMES = "replay:profiles/synthetic-mixed-cluster.jsonl"


def splits(answer: Json) -> list[str]:
    batches = " + ".join(str(device["batch"]) for device in answer["devices"])
    gains = [f"{answer[f'speedup_over_{what}']:.2f}" for what in ("alone", "even")]
    even = ", ".join(f"{device['even_batch']}: {device['even_time_us'] / 1e3:.2f}" for device in answer["devices"])
    return [batches, ms(answer["time_us"]), even, *gains]


FIGURE_13 = Table(
    "mucudnn-figure-13",
    ["devices", "mini-batches", "time (ms)", "even split: each device's time (ms)", "over the first alone", "over the even split", "the paper"],
    [f"{MIXED} --devices {{devices}} --backend {TIMES}"],
    [
        Row([devices.replace(",", ", ")], {"devices": devices}, [paper])
        for devices, paper in [
            ("K80,K80,K20Xm", "12 + 12 + 8, 2.12 over one chip of the K80"),
            ("K80,K80,K20Xm,750Ti", "2.20 over one chip of the K80"),
            ("K20Xm,750Ti", "1.37 over the even split (83.03 and 168.43 ms)"),
        ]
    ],
    splits,
    shown=f"{MIXED} --devices DEVICES --backend {TIMES}",
)

# C figure 8 in one command.
DEEPBENCH = (
    "optimize deepbench-x4 --types f16 --operations forward --workspace 64MiB "
    f"--backend replay:{RECORDED}2026-11-21-more.jsonl.gz,{RECORDED}2026-11-22.jsonl.gz"
)
LEGACY_DEEPBENCH = f"optimize deepbench-256 --workspace 256MiB --sizes power-of-two --backend replay:{RECORDED}legacy-deepbench.jsonl.gz"


def gains(answer: Json) -> list[float]:
    """For each kernel, its speedup over undivided."""
    return [kernel["undivided"]["time_us"] / kernel["time_us"] for kernel in answer["kernels"]]


def all_gains(answer: Json) -> list[str]:
    of_kernels = f"{min(gains(answer)):.2f} to {max(gains(answer)):.2f}"
    return [f"{answer['undivided_time_us'] / 1e3:.1f}", f"{answer['time_us'] / 1e3:.1f}", f"{answer['speedup']:.2f}", of_kernels]


DEEPBENCH_LEGACY = Table(
    "mucudnn-deepbench-legacy",
    ["interface", "limit", "undivided (ms)", "power-of-two (ms)", "gain", "of a kernel"],
    [LEGACY_DEEPBENCH],
    [Row(["legacy", "256 MiB"])],
    all_gains,
    shown=LEGACY_DEEPBENCH,
)

CONV5 = "--batch 256 --layers conv5 --operations forward --workspace 109MiB"
CONV5_TABLE = Table(
    "mucudnn-conv5",
    ["network", "configuration", "workspace (MiB)", "time (ms)", "over undivided", "the paper (P100)"],
    [f"optimize {{network}} {CONV5} --backend {MAIN}"],
    [
        Row(["AlexNet in two groups"], {"network": "alexnet"}, ["two micro-batches, FFT, 109 MiB, 1.29"]),
        Row(["AlexNet in one column"], {"network": "alexnet-1col"}, ["-"]),
    ],
    figure_10_cells,
    shown=f"optimize NETWORK {CONV5} --backend {MAIN}",
)

OF_FRONT = "--layers LAYER --operations OPERATION --picture front --plot FILE.svg"
# The subject of the count, the command, and the paper's counts: the largest front, all points.
VARIABLES = [
    ("AlexNet in one column 256", f"{ONE_COLUMN} --total-workspace 120MiB --sizes all --no-baseline --backend {LEGACY_ALL}", "68, -"),
    ("ResNet-50 32", f"optimize resnet50 --batch 32 --total-workspace 5088MiB --sizes all --no-baseline --backend {MAIN}", "-, 562"),
    ("ResNet-50 64", f"optimize resnet50 --batch 64 --total-workspace 5088MiB --sizes all --no-baseline --backend {RESNET50_ALL}", "-"),
    ("ResNet-152 128", f"optimize resnet152 --batch 128 --total-workspace 4960MiB --sizes fit --backend {MAIN}", "-"),
]


def variables(answers: Answers) -> str:
    """Points of all kernels' fronts: the variables of the integer program; kernels of equal problems have equal fronts."""
    rows = []
    for network, command, paper in VARIABLES:
        kernels = answers.of(command)["kernels"]
        fronts = {kernel["problem"]: f"{command} --layers {kernel['layer']} --operations {kernel['operation']}" for kernel in kernels}
        found = answers.all(f"{front} --picture front" for front in fronts.values())
        points = dict(zip(fronts, (answer["points"] for answer in found), strict=True))
        most, every = max(points.values()), sum(points[kernel["problem"]] for kernel in kernels)
        rows.append([network, f"`tightfit {command}`", str(len(kernels)), str(most), str(every), paper])
    head = ["network, mini-batch", f"command, with `{OF_FRONT}`", "kernels", "points of the largest front", "of all", "the paper"]
    return table(head, rows)


# Blocks that are not a table of fixed rows.
BLOCKS = {"mucudnn-variables": variables}
TABLES = [FIGURE_1, TUNING, *FIGURE_9, FIGURE_10, *FIGURE_11, TOTALS_TABLE, *ARXIV_12, FIGURE_12, FIGURE_13, DEEPBENCH_LEGACY, CONV5_TABLE]
