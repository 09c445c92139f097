"""The papers' main numbers and ours: replayed ones from their commands, measured ones from docs/measured."""

import statistics
from typing import Any

from .counts import DEAREST, NEEDED, of_bytes
from .halves import over_true_half
from .measured import lines, printed, table_5_steps, tuning_lines
from .mucudnn import BOTH_ALL, DEEPBENCH, MAIN, ONE_COLUMN, RESNET18_ALL, TWO_GROUPS, by_layer, gains, share
from .per_group import CONV2, LAYERS, ONCE_A_GROUP, PER_GROUP
from .plans import performance
from .tables import GB, Row, Table
from .vdnn import ALEXNET, CARD, K40, NETWORKS, PAPERS, VGG, WIDE

Json = dict[str, Any]


def row(place: str, what: str, paper: str, link: str, commands: list[str], read) -> Row:
    anchor = link.lower().replace(":", "").replace(",", "").replace(" ", "-")
    return Row([place, what, paper], commands=commands, read=lambda *found: [read(*found)], after=[f"[{link}](#{anchor})"])


def tuned() -> str:
    of = {line["sizes"]: line for line in tuning_lines() if line["network"] == "alexnet-1col"}
    every = of["all"]
    rest = " and ".join(f"{of[sizes]['seconds']} s ({sizes})" for sizes in ("power-of-two", "fit"))
    return f"{every['seconds']} s on {every['gpus']} GPUs, {every['device_seconds']} s of theirs together; on one GPU {rest}"


def solved() -> str:
    bench, *_, command = printed("solve")
    return f"{bench['solver_us'] / 1e3:.3f} ms; ResNet-152's whole command {command['command_ms']} ms"


def table_5() -> str:
    found = table_5_steps()
    steps = [found[network] for network in ("AlexNet b256", "ResNet-50 b64", "DenseNet-40 b256, k = 40")]
    gains = ", ".join(f"{step['undivided']['step_ms'] / step['fit']['step_ms']:.2f}" for step in steps)
    return f"{gains}; AlexNet in one column"


def resnet18(answer: Json) -> str:
    undivided, every = (lines()[f"iterations-64-{sizes}"]["resnet18:128"]["step_ms"] for sizes in ("undivided", "all-resnet18"))
    return f"{gain(answer)}; {undivided / every:.2f} in PyTorch"


def one_byte(*answers: Json) -> str:
    with_it, without = (answer["kernels"][0]["undivided"]["time_us"] for answer in answers)
    return f"{without / with_it:.1f}"


def gain(answer: Json) -> str:
    return f"{answer['speedup']:.2f}"


def speeds(*plans: Json) -> str:
    found = [performance(plan) for plan in plans]
    of_k40 = len(OF_PAPER)
    parts = []
    for name, values in (("at a K40's rates", found[:of_k40]), ("planned for an H200", found[of_k40:])):
        parts.append(f"{100 * statistics.mean(values):.1f}% and {100 * min(values):.1f}% {name}")
    return "; ".join(parts)


def deep(*plans: Json) -> str:
    parts = []
    for name, plan in zip(("at a K40's rates", "planned for an H200"), plans, strict=True):
        way = plan["accounting"]["paper"]
        parts.append(f"{way['baseline_bytes'] / GB:.1f} and {way['maximum_bytes'] / GB:.1f} GB, {100 * performance(plan):.0f}% {name}")
    return "; ".join(parts)


def less(plain: Json, divided: Json) -> float:
    after = by_layer(divided)
    before = by_layer(plain, "undivided").items()
    return max((data + taken) / (data + after[layer][1]) for layer, (data, taken, _) in before)


def saved(*plans: Json) -> str:
    ways = [plan["accounting"]["paper"] for plan in plans]
    return " and ".join(f"{100 * statistics.mean(way[f'{kind}_saved'] for way in ways):.0f}%" for kind in ("maximum", "average"))


RESNET18 = "optimize resnet18 --batch 128"
RESNET50 = "optimize resnet50 --batch 32 --total-workspace 2544MiB"
BASELINE = f"--divide off --budget {WIDE} --policy baseline --algorithms performance"
DYNAMIC = f"--divide off --budget {CARD} --policy vdnn-dynamic"
ALL = f"--divide off --budget {WIDE} --policy vdnn-all --algorithms performance"
OF_PAPER = [(network, batch, profile) for network, batch, name, profile, _ in NETWORKS if name in PAPERS]


def each(policy: str, recorded: bool) -> list[str]:
    return [
        f"plan {network} --batch {batch} {policy} {f'--backend {profile}' if recorded else K40}"
        for network, batch, profile in OF_PAPER
        if profile or not recorded
    ]


NINE, EIGHT, ELEVEN = "Figure 9 and I figure 11: three limits", "Figure 8: DeepBench", "Figure 11: one total"
ONE_THREE, THIRTEEN = "Figures 1 and 3: what the baseline takes", "Figure 13: very deep networks"
SUMMARY = Table(
    "summary",
    ["place", "what", "the paper", "ours", "more"],
    [],
    [
        row("C IV.B.1", "AlexNet's convolutions at 64 MiB, `all`", "1.63 (P100), 2.10 (K80), 1.60 (V100)", NINE,
            [f"{LAYERS} --workspace 64MiB --sizes fit --backend {PER_GROUP}", f"{ONE_COLUMN} --workspace 64MiB --sizes all --backend {BOTH_ALL}"],
            lambda fit, every: f"fit {gain(fit)} as Caffe calls it, once a group; `all` {gain(every)} in one column"),
        row("C IV.B.1", "workspace undivided at 512 MiB, divided at 64", "2.87 and 0.70 GiB", "Memory at 512 and at 64 MiB",
            ONCE_A_GROUP.commands, lambda *found: " and ".join(ONCE_A_GROUP.read(*found)[:2])),
        row("C IV.B.1", "time to tune, `all` and `powerOfTwo`", "34.16 and 3.82 s", "Time to tune", [], tuned),
        row("C IV.B.1", "conv2 forward at 64 MiB, `all`", "2.33", "Figure 10: conv2 forward",
            [f"{CONV2} --workspace 64MiB --sizes {sizes} --backend {PER_GROUP}" for sizes in ("all", "fit")],
            lambda every, fit: f"{gain(every)}; fit {gain(fit)}"),
        row("C IV.A", "DeepBench x4 in half precision, mean and largest", "1.60 and 4.54 (V100)", EIGHT, [DEEPBENCH],
            lambda answer: f"{statistics.mean(gains(answer)):.2f} and {max(gains(answer)):.2f}; over TRUE_HALF alone, as in the paper, "
            f"{statistics.mean(over_true_half(answer['kernels'], DEEPBENCH.split('replay:')[1].split(','))):.2f} on average"),
        row("C IV.B.2", "120 MiB as one total, AlexNet's convolutions", "1.38", ELEVEN,
            [f"{of} --total-workspace 120MiB --backend {MAIN}" for of in (TWO_GROUPS, ONE_COLUMN)],
            lambda groups, column: f"{gain(groups)} in two groups, {gain(column)} in one column"),
        row("C IV.B.2", "ResNet-50's convolutions, 2544 MiB", "1.14", ELEVEN, [f"{RESNET50} --backend {MAIN}"], gain),
        row("C IV.B.2", "share of 120 MiB for conv2 and conv3", "93.7%", "Figure 12: who gets the workspace",
            [f"{of} --total-workspace 120MiB --backend {MAIN}" for of in (TWO_GROUPS, ONE_COLUMN)],
            lambda groups, column: f"{share(groups)[5]} in two groups, {share(column)[5]} in one column"),
        row("C IV.B.2", "time to solve, ResNet-50 and ResNet-152", "5.46 and 716 ms (GLPK)", "Time to solve", [], solved),
        row("C table V", "AlexNet, ResNet-50, DenseNet-40 at 64 MiB, whole iterations", "1.24, 1.05, 1.11",
            "Table V: networks under 64 MiB", [], table_5),
        row("I IV", "ResNet-18 at 64 MiB, `all`, convolutions and whole iteration", "1.21 and 1.11", NINE,
            [f"{RESNET18} --workspace 64MiB --sizes all --backend {RESNET18_ALL}"], resnet18),
        row("A and I figure 1", "one byte too little", "4.51", "A and I figure 1: one byte too little",
            [of_bytes(*DEAREST, size) for size in (NEEDED, NEEDED - 1)], one_byte),
        row("A IV.C", "less memory in a layer, AlexNet and ResNet-18", "3.43 and 2.73", "A figure 12: memory of each layer",
            [f"{of} --workspace {limit} --backend {MAIN}" for of in (TWO_GROUPS, RESNET18) for limit in ("512MiB --sizes undivided", "64MiB")],
            lambda *found: f"{less(*found[:2]):.2f} and {less(*found[2:]):.2f}"),
        row("V 1", "baselines of AlexNet and VGG-16 (256)", "1.1 and 28 GB", ONE_THREE,
            [f"plan {of} {BASELINE} {rates}" for of, profile in (("alexnet-1col --batch 128", ALEXNET), ("vgg19 --batch 256", VGG))
             for rates in (K40, f"--backend {profile}")],
            lambda *found: "{:.1f} to {:.1f} and {:.1f} to {:.1f} GB, without workspaces and with".format(
                *(plan["accounting"]["paper"]["baseline_bytes"] / GB for plan in found))),
        row("V 3.1", "reuse distance, AlexNet and VGG-16 (64)", "over 100 and 2500 ms", "Reuse distances",
            [f"plan {of} {BASELINE} {K40}" for of in ("alexnet-1col --batch 128", "vgg19 --batch 64")],
            lambda *found: " and ".join(f"{plan['maps'][0]['reuse_distance_us'] / 1e3:.0f}" for plan in found) + " ms at a K40's rates"),
        row("V 5.1", "saved by all(p), maximum and average", "50% and 85%", "Figure 9: memory", each(ALL, True), saved),
        row("V 5.1", "to the host, VGG-16 (256)", "up to 16 GB", "Figure 10: bytes offloaded",
            [f"plan vgg19 --batch 256 {ALL} --backend {VGG}"], lambda plan: f"{plan['offloaded_bytes'] / GB:.1f} GB"),
        row("V 5.3", "dynamic's share of the baseline's speed, mean and worst", "95% and 78%", "Figure 12: performance",
            each(DYNAMIC, False) + each(DYNAMIC, True), speeds),
        row("V 5.4", "VGG-516: baseline, dynamic, its speed", "80.6 and 5.8 GB, 99%", THIRTEEN,
            [f"plan vgg516 --batch 32 {DYNAMIC} {rates}" for rates in (K40, f"--backend {VGG}")], deep),
    ],
    lambda *_: [],
)  # fmt: skip
