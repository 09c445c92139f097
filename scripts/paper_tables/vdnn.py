"""Replays of the vDNN paper (V): on the recorded profile of an H200, and on the rates of a K40."""

import statistics
from typing import Any

from .measured import run_dynamic
from .mucudnn import tensors
from .plans import features, functions, performance, workspace, working_set
from .tables import GB, Row, Table, ms

Json = dict[str, Any]
RECORDED = "replay:profiles/recorded/h200-"
VGG, ALEXNET, LATER, LATEST = (
    f"{RECORDED}{name}.jsonl.gz" for name in ("legacy-vgg16", "legacy-alexnet-1col-all", "2026-11-21", "2026-11-22")
)
K40 = "--assume --costs k40"
# The paper's networks with their mini-batches: what they are called here and there, where recorded, and the stated baseline in GB.
NETWORKS = [
    ("alexnet-1col", 128, "AlexNet 128", ALEXNET, "1.1"),
    ("overfeat", 128, "OverFeat 128", LATEST, "-"),
    ("googlenet", 128, "GoogLeNet 128", LATER, "-"),
    ("vgg19", 32, "VGG-19 32", VGG, "4.9"),
    ("vgg19", 64, "VGG-19 64", VGG, "-"),
    ("vgg19", 128, "VGG-19 128", VGG, "15"),
    ("vgg19", 256, "VGG-19 256", VGG, "28"),
]
DEEP = [("vgg19", "4.9"), *((f"vgg{n}16", "80.6" if n == 5 else "-") for n in range(1, 6))]
PAPERS = [name for *_, name, _, _ in NETWORKS if name != "GoogLeNet 128"]
# Everything fits in the larger budget, so that what does not fit in the paper's card can be shown with a star.
WIDE, CARD = "1TiB", "12GiB"
POLICIES = [
    ("base(m)", WIDE, "--policy baseline --algorithms memory"),
    ("base(p)", WIDE, "--policy baseline --algorithms performance"),
    ("all(m)", WIDE, "--policy vdnn-all --algorithms memory"),
    ("all(p)", WIDE, "--policy vdnn-all --algorithms performance"),
    ("conv(m)", WIDE, "--policy vdnn-conv --algorithms memory"),
    ("conv(p)", WIDE, "--policy vdnn-conv --algorithms performance"),
    ("dyn", CARD, "--policy vdnn-dynamic"),
]
LABELS = [label for label, *_ in POLICIES]


def commands(policies: list[tuple[str, str, str]]) -> list[str]:
    each = "plan {network} --batch {batch} --divide off {rates}"
    return [f"{each} --budget {budget} {policy}" for _, budget, policy in policies]


def rows(recorded: bool) -> list[Row]:
    """The paper's conventional networks; networks without a recording are left out where one is needed."""
    return [
        Row([name], {"network": network, "batch": str(batch), "rates": f"--backend {profile}" if recorded else K40}, [paper])
        for network, batch, name, profile, paper in NETWORKS
        if profile or not recorded
    ]


def shown(recorded: bool) -> str:
    rates = "--backend replay:PROFILE" if recorded else K40
    return f"plan NETWORK --batch N --budget BUDGET --divide off --policy POLICY --algorithms ALGORITHMS {rates}"


def gb(value: float) -> str:
    return f"{value / GB:.2f}"


def breakdown(plan: Json) -> list[str]:
    baseline = plan["accounting"]["paper"]["baseline_bytes"]
    of = functions(plan)
    layer, share = working_set(plan)
    kinds = [gb(of[kind]) for kind in ("weights", "feature maps", "gradient maps", "workspace")]
    shares = [of["feature maps"] / baseline, features(plan), share]
    return [gb(baseline), *kinds, *(f"{100 * value:.0f}%" for value in shares), f"{layer}, {100 * (1 - share):.0f}% unused"]


def figures_1_3(recorded: bool) -> Table:
    words = ["weights", "feature maps", "gradients", "workspace", "share of feature maps", "of feature extraction"]
    return Table(
        f"vdnn-figures-1-3-{'h200' if recorded else 'k40'}",
        ["network, mini-batch", "baseline (GB)", *words, "largest layer's share", "that layer", "the paper's baseline (GB)"],
        commands(POLICIES[1:2]),
        rows(recorded),
        breakdown,
        shown=shown(recorded).replace("BUDGET", WIDE).replace("POLICY", "baseline").replace("ALGORITHMS", "performance"),
    )


def layer_row(layer: str):
    def read(plan: Json) -> list[str]:
        [one] = [each for each in plan["layers"] if each["layer"] == layer]
        maps = one["input_bytes"] + one["output_bytes"]
        return [gb(maps), gb(one["forward_workspace_bytes"]), f"{one['weight_bytes'] / 1e6:.2f}"]

    return read


VGG_LAYERS = [f"conv{group}_{n}" for group, count in enumerate([2, 2, 4, 4, 4], 1) for n in range(1, count + 1)]
FIGURE_4 = Table(
    "vdnn-figure-4",
    ["layer, forward", "input and output (GB)", "workspace (GB)", "weights (MB)"],
    commands(POLICIES[1:2]),
    [
        Row([layer], {"network": "vgg19", "batch": "256", "rates": f"--backend {VGG}"}, read=layer_row(layer))
        for layer in [*VGG_LAYERS, "fc6", "fc7", "fc8"]
    ],
    lambda _: [],
    shown=f"plan vgg19 --batch 256 --budget {WIDE} --divide off --policy baseline --algorithms performance --backend {VGG}",
)


def reuse(*plans: Json) -> list[str]:
    """The reuse distance of the first convolution's input under each plan."""
    return [ms(plan["maps"][0]["reuse_distance_us"]) for plan in plans]


REUSE = Table(
    "vdnn-reuse",
    ["network, mini-batch", "K40's rates (ms)", "H200, recorded (ms)", "the paper (K40)"],
    [
        f"plan {{network}} --batch {{batch}} --divide off --budget {WIDE} --policy baseline --algorithms performance {rates}"
        for rates in (K40, "--backend {profile}")
    ],
    [
        Row(["AlexNet 128"], {"network": "alexnet-1col", "batch": "128", "profile": ALEXNET}, ["more than 100 ms"]),
        Row(["VGG-19 64"], {"network": "vgg19", "batch": "64", "profile": VGG}, ["more than 2500 ms"]),
    ],
    reuse,
    shown=f"plan NETWORK --batch N --divide off --budget {WIDE} --policy baseline --algorithms performance RATES",
)


def taken(plan: Json) -> str:
    """Maximum / average in GB in the paper's accounting; a star where the plan does not fit the paper's card."""
    if "needs_gib" in plan:
        return f"needs {plan['needs_gib']} GiB"
    way = plan["accounting"]["paper"]
    star = "*" if plan["peak_bytes"] > 12 * 2**30 else ""
    return f"{gb(way['maximum_bytes'])} / {gb(way['average_bytes'])}{star}"


def memory(*plans: Json) -> list[str]:
    """Of the baselines one number: they allocate everything at the start, and differ in the workspace alone."""
    least, fastest = plans[:2]
    baseline = fastest["accounting"]["paper"]["baseline_bytes"]
    return [gb(baseline - workspace(fastest) + workspace(least)), gb(baseline), *map(taken, plans[2:])]


def ours(*plans: Json) -> list[str]:
    """Maximum / average in GB with weight gradients, momentum and what layers save."""
    baseline, *others = plans
    cells = [gb(baseline["peak_bytes"])]
    for plan in others:
        way = plan["accounting"]["ours"]
        star = "*" if plan["peak_bytes"] > 12 * 2**30 else ""
        cells.append(f"{gb(way['maximum_bytes'])} / {gb(way['average_bytes'])}{star}")
    return cells


OURS = Table(
    "vdnn-memory-ours",
    ["network, mini-batch", "base(p)", *LABELS[2:]],
    commands(POLICIES[1:]),
    [
        *(Row(row.labels, row.values) for row in rows(True)),
        *(Row([f"VGG-{n}16 32"], {"network": f"vgg{n}16", "batch": "32", "rates": f"--backend {VGG}"}) for n in (1, 5)),
    ],
    ours,
    shown=shown(True),
)

# The paper's statements: reductions of maximum and average over AlexNet, OverFeat and VGG-16, in percent.
STATED = {"all(m)": "69 / 92", "all(p)": "50 / 85", "conv(p)": "39 / 72", "dyn": "37 / 64"}


def mean_saved(recorded: bool):
    names = [name for *_, name, profile, _ in NETWORKS if profile or not recorded]

    def last(answers: list[list[Json]]) -> list[list[str]]:
        kept = [plans for name, plans in zip(names, answers, strict=True) if name in PAPERS]
        cells = []
        for place, label in enumerate(LABELS):
            if label.startswith("base"):
                cells.append("-")
                continue
            ways = [plans[place]["accounting"]["paper"] for plans in kept]
            most, average = (100 * statistics.mean(way[f"{kind}_saved"] for way in ways) for kind in ("maximum", "average"))
            stated = f" (the paper {STATED[label]})" if label in STATED else ""
            cells.append(f"{most:.0f}% / {average:.0f}%{stated}")
        return [["**mean saved**, maximum / average", *cells, ""]]

    return last


def figure_9(recorded: bool) -> Table:
    return Table(
        f"vdnn-figure-9-{'h200' if recorded else 'k40'}",
        ["network, mini-batch", *LABELS, "the paper's base"],
        commands(POLICIES),
        rows(recorded),
        memory,
        shown=shown(recorded),
        last=mean_saved(recorded),
    )


# The paper's reductions of the average, and their cost.
STATED_AVERAGE = {
    "AlexNet 128": ["61%", "89%"],
    "OverFeat 128": ["83%", "91%"],
    "GoogLeNet 128": ["-", "95%"],
    "VGG-19 256": ["60%, 22% slower (dynamic)", "18% slower"],
}


def saved_average(*plans: Json) -> list[str]:
    return [f"{100 * plan['accounting']['paper']['average_saved']:.0f}%" for plan in plans]


SAVED = Table(
    "vdnn-saved",
    ["network, mini-batch", *(f"{label}, {rates}" for rates in ("H200", "K40's rates") for label in ("all(m)", "all(p)", "dyn")), "the paper", "the MICRO text, up to (Titan X)"],
    [
        f"plan {{network}} --batch {{batch}} --divide off --budget {budget} {policy} {rates}"
        for rates in ("{recorded}", K40)
        for _, budget, policy in (POLICIES[2], POLICIES[3], POLICIES[6])
    ],
    [
        Row(row.labels, row.values | {"recorded": row.values["rates"]}, STATED_AVERAGE[row.labels[0]])
        for row in rows(True)
        if row.labels[0] in STATED_AVERAGE
    ],
    saved_average,
)


def unused(*plans: Json) -> list[str]:
    """The most that a plan takes of the card's 12 GB, what it leaves, and its speed."""
    most = [plan["accounting"]["paper"]["maximum_bytes"] / GB for plan in plans]
    return [f"{taken:.1f}, {12 - taken:.1f}, {performance(plan):.2f}" for taken, plan in zip(most, plans, strict=True)]


UNUSED = Table(
    "vdnn-unused",
    ["network, mini-batch: most used of 12 GB, left (GB), speed", "H200, recorded", "K40's rates", "the paper"],
    [f"plan {{network}} --batch {{batch}} --divide off --budget {WIDE} {POLICIES[2][2]} {rates}" for rates in ("{recorded}", K40)],
    [
        Row([f"{row.labels[0]}, all(m)"], row.values | {"recorded": row.values["rates"]}, ["4.8, 7.2, 0.51"])
        for row in rows(True)
        if row.labels[0] == "VGG-19 128"
    ],
    unused,
)


def offloaded(*plans: Json) -> list[str]:
    return [gb(plan["offloaded_bytes"]) if "offloaded_bytes" in plan else taken(plan) for plan in plans]


def figure_10(recorded: bool) -> Table:
    return Table(
        f"vdnn-figure-10-{'h200' if recorded else 'k40'}",
        ["network, mini-batch", "all (GB)", "conv (GB)", "dyn (GB)", "the paper"],
        commands([POLICIES[3], POLICIES[5], POLICIES[6]]),
        [
            Row(row.labels, row.values, ["up to 16 GB (all)" if row.labels == ["VGG-19 256"] else "-"])
            for row in rows(recorded)
        ],
        offloaded,
        shown=shown(recorded),
    )


STATED_SPEED = {"VGG-19 256": "0.78 (dyn)", "VGG-19 128": "0.51 (all(m))"}


def speed(*plans: Json) -> list[str]:
    cells = []
    for plan in plans:
        star = "*" if plan.get("peak_bytes", 0) > 12 * 2**30 else ""
        cells.append(taken(plan) if "needs_gib" in plan else f"{performance(plan):.3f}{star}")
    return cells


# The paper's mean and worst speeds, by the place of a policy.
STATED_SPEEDS = [
    ("mean", statistics.mean, {1: " (0.54)", 3: " (0.57)", 5: " (0.95)"}),
    ("worst", min, {1: " (0.41)", 3: " (0.44)", 5: " (0.78)"}),
]


def mean_and_worst_speed(recorded: bool):
    names = [name for *_, name, profile, _ in NETWORKS if profile or not recorded]

    def last(answers: list[list[Json]]) -> list[list[str]]:
        kept = [plans for name, plans in zip(names, answers, strict=True) if name in PAPERS]
        found = [[performance(plans[place]) for plans in kept] for place in range(len(POLICIES) - 1)]
        rows = []
        for name, of, stated in STATED_SPEEDS:
            cells = [f"{of(speeds):.3f}{stated.get(place, '')}" for place, speeds in enumerate(found)]
            rows.append([f"**{name}**; in parentheses, the paper's", *cells, *[""] * recorded, ""])
        return rows

    return last


def figure_12(recorded: bool) -> Table:
    chosen = [POLICIES[0], *POLICIES[2:]]
    ran = (lambda row: [run_dynamic(f"{row.values['network']}:{row.values['batch']}")]) if recorded else lambda _: []
    return Table(
        f"vdnn-figure-12-{'h200' if recorded else 'k40'}",
        ["network, mini-batch", *(label for label, *_ in chosen), *["dyn, run on an H200"] * recorded, "the paper"],
        commands(chosen),
        [Row(row.labels, row.values, [*ran(row), STATED_SPEED.get(row.labels[0], "-")]) for row in rows(recorded)],
        speed,
        shown=shown(recorded),
        last=mean_and_worst_speed(recorded),
    )


def deep(plan: Json) -> list[str]:
    if "needs_gib" in plan:
        return [taken(plan), "-", "-", "-"]
    way = plan["accounting"]["paper"]
    sizes = [way["baseline_bytes"], way["maximum_bytes"], plan["offloaded_bytes"]]
    return [*map(gb, sizes), f"{performance(plan):.3f}"]


def of_500_convolutions(answers: list[list[Json]]) -> list[list[str]]:
    """The bytes of the deepest network's baseline over the first's, in GB and in 2^30 bytes; the paper: 80.6 less 4.9."""
    first, *_, deepest = (plan["accounting"]["paper"]["baseline_bytes"] for [plan] in answers)
    more = deepest - first
    return [["**516 less 16 convolutions**", f"{gb(more)} ({more / 2**30:.2f} GiB)", "", "", "", "75.7", ""]]


def figure_13(recorded: bool) -> Table:
    rates = f"--backend {VGG}" if recorded else K40
    return Table(
        f"vdnn-figure-13-{'h200' if recorded else 'k40'}",
        [
            *["network", "baseline (GB)", "dyn, maximum (GB)", "offloaded (GB)", "performance"],
            *["run on an H200"] * recorded,
            *["the paper: baseline", "the paper: dyn"],
        ],
        commands(POLICIES[-1:]),
        [
            Row(
                [network.upper().replace("VGG", "VGG-") + " 32"],
                {"network": network, "batch": "32", "rates": rates},
                [*[run_dynamic(f"{network}:32")] * recorded, baseline, "5.8 at most; 0.99" if network == "vgg516" else "0.99" if network != "vgg19" else "-"],
            )
            for network, baseline in DEEP
        ],
        deep,
        last=None if recorded else of_500_convolutions,
        shown=f"plan NETWORK --batch 32 --budget {CARD} --divide off --policy vdnn-dynamic {rates}",
    )


OPERATIONS = ["forward", "backward-data", "backward-filter"]
PEAK = 4.8e12


def least_rate(layer: str):
    """The bytes of input, output and filters over the time of each operation, as shares of the memory's rate."""

    def read(answer: Json) -> list[str]:
        cells = []
        for operation in OPERATIONS:
            [kernel] = [k for k in answer["kernels"] if (k["layer"], k["operation"]) == (layer, operation)]
            rate = tensors(kernel["problem"]) / kernel["undivided"]["time_us"] * 1e6
            cells.append(f"{rate / GB:.0f} GB/s, {100 * rate / PEAK:.0f}%")
        return cells

    return read


BANDWIDTH = f"optimize vgg19 --batch 256 --workspace 64GiB --sizes undivided --backend {VGG}"
FIGURE_11 = Table(
    "vdnn-figure-11",
    ["layer", *OPERATIONS],
    [BANDWIDTH],
    [Row([layer], read=least_rate(layer)) for layer in VGG_LAYERS],
    lambda _: [],
    shown=BANDWIDTH,
)

KINDS = [False, True]
TABLES = [
    *map(figures_1_3, KINDS),
    FIGURE_4,
    REUSE,
    *map(figure_9, KINDS),
    SAVED,
    UNUSED,
    OURS,
    *map(figure_10, KINDS),
    FIGURE_11,
    *map(figure_12, KINDS),
    *map(figure_13, KINDS),
]
