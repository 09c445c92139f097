"""Counts of the mu-cuDNN paper: configurations that exist, kernels that take more workspace, and a byte too little."""

import gzip
import json
import math
from typing import Any

from .mucudnn import BOTH_ALL, LEGACY_ALL, MAIN, MIB, ONE_COLUMN
from .per_group import LAYERS, PER_GROUP
from .tables import ROOT, Answers, Row, Table, table

Json = dict[str, Any]


def more_workspace(answer: Json) -> list[str]:
    """The kernels whose configuration takes more workspace than the best undivided algorithm, and the kernels that are faster."""
    kernels = answer["kernels"]
    more = [kernel for kernel in kernels if kernel["workspace_bytes"] > kernel["undivided"]["workspace_bytes"]]
    faster = [kernel for kernel in kernels if kernel["time_us"] < kernel["undivided"]["time_us"]]
    most = max((kernel["undivided"]["time_us"] / kernel["time_us"] for kernel in faster), default=1)
    return [str(len(kernels)), str(len(more)), str(len(faster)), f"{most:.2f}"]


EIGHT_MIB = Table(
    "mucudnn-8-mib",
    ["network", "interfaces", "sizes", "kernels", "with more workspace", "faster", "at most", "the paper (P100)"],
    ["{of} --workspace 8MiB --sizes {sizes} --backend {profile}"],
    [
        Row([name, interfaces, sizes], {"of": of, "sizes": sizes, "profile": profile}, [paper])
        for name, interfaces, of, sizes, profile, paper in [
            ("AlexNet in one column", "legacy", ONE_COLUMN, "all", LEGACY_ALL, "one kernel with more workspace"),
            ("AlexNet in one column", "both", ONE_COLUMN, "all", BOTH_ALL, "-"),
            ("AlexNet once a group (`scripts/alexnet-per-group.txt`)", "both", LAYERS, "fit", PER_GROUP, "-"),
        ]
    ],
    more_workspace,
    shown="optimize NETWORK --batch 256 --workspace 8MiB --sizes SIZES --backend replay:PROFILE",
)


def algorithms(profile: str, problem: str) -> int:
    """The algorithms that a recording has of a problem."""
    with gzip.open(ROOT / profile.removeprefix("replay:"), "rt") as lines:
        found = [json.loads(line) for line in lines]
    return len({line["algorithm"] for line in found if line.get("problem", "").startswith(problem)})


def space(count: int, batch: int) -> str:
    """|A| (|A| + 1)^(B - 1), the paper's count of ways to divide B samples, as it prints such numbers."""
    logarithm = math.log10(count) + (batch - 1) * math.log10(count + 1)
    return f"{10 ** (logarithm % 1):.1f}e{int(logarithm)}"


def search_space(_: Answers) -> str:
    rows = [["the paper, cuDNN 7", "6", space(6, 256), "1.9e216"]]
    for name, profile in [("legacy interface", LEGACY_ALL), ("both", BOTH_ALL)]:
        count = algorithms(profile, "backward-filter c64 h27 w27 k192 r5 s5 pad2 f32")
        rows.append([f"conv2 of AlexNet in one column, cuDNN 9, {name}", str(count), space(count, 256), "-"])
    head = ["kernel", "algorithms of backward-filter", "configurations of 256 samples", "the paper prints"]
    return table(head, rows)


# The kernel that loses most by one missing byte, and the workspace of its best algorithm.
DEAREST, NEEDED = ("conv2", "backward-filter"), 407_027_712


def of_bytes(layer: str, operation: str, size: int) -> str:
    return f"{ONE_COLUMN} --layers {layer} --operations {operation} --workspace {size} --backend {MAIN}"


def one_byte_less(answers: Answers) -> list[tuple[Json, Json]]:
    """Each kernel that needs workspace, as it is best undivided, and in a byte less."""
    best = answers.of(f"{ONE_COLUMN} --workspace 8GiB --sizes undivided --backend {MAIN}")["kernels"]
    needy = [kernel for kernel in best if kernel["undivided"]["workspace_bytes"]]
    less = answers.all(of_bytes(kernel["layer"], kernel["operation"], kernel["undivided"]["workspace_bytes"] - 1) for kernel in needy)
    return [(kernel["undivided"], answer["kernels"][0]) for kernel, answer in zip(needy, less, strict=True)]


def parts(kernel: Json) -> str:
    sizes = [part["micro_batch"] for part in kernel["configuration"]]
    return f"{len(sizes)} x {sizes[0]}" if len(sizes) > 1 and len(set(sizes)) == 1 else " + ".join(map(str, sizes))


def one_byte(answers: Answers) -> str:
    """A kernel within a byte less than its fastest algorithm needs."""
    found = one_byte_less(answers)
    rows = []
    for best, kernel in found:
        undivided, divided = kernel["undivided"]["time_us"], kernel["time_us"]
        rows.append(
            [
                f"{kernel['layer']} {kernel['operation']}",
                f"{best['workspace_bytes'] / MIB:.0f} MiB",
                f"{best['time_us'] / 1e3:.3f}",
                f"{undivided / 1e3:.2f}",
                f"{parts(kernel)}, {divided / 1e3:.2f}",
                f"{undivided / best['time_us']:.2f}",
                f"{undivided / divided:.2f}",
            ]
        )
    sums = [sum(times) / 1e3 for times in zip(*((b["time_us"], k["undivided"]["time_us"], k["time_us"]) for b, k in found), strict=True)]
    rows.append(["total", "", f"{sums[0]:.2f}", f"{sums[1]:.2f}", f"{sums[2]:.2f}", f"{sums[1] / sums[0]:.2f}", f"{sums[1] / sums[2]:.2f}"])
    head = ["kernel", "workspace of the best", "its time (ms)", "a byte less, undivided", "divided", "the byte's cost", "gain"]
    best, kernel = max(found, key=lambda pair: lost(*pair))
    assert ((kernel["layer"], kernel["operation"]), best["workspace_bytes"]) == (DEAREST, NEEDED), "the summary has another kernel"
    sentence = (
        f"\nOne missing byte costs up to a factor of {lost(best, kernel):.1f} ({kernel['layer']} {kernel['operation']}; the paper: 4.51 in "
        f"AlexNet's\nsecond layer), and dividing recovers all but {100 * (kernel['time_us'] / best['time_us'] - 1):.0f}% of it.\n"
    )
    command = "`tightfit optimize alexnet-1col --batch 256 --layers LAYER --operations OPERATION --workspace BYTES --backend " + MAIN + "`"
    return f"{command}\n\n{table(head, rows)}{sentence}"


def lost(best: Json, kernel: Json) -> float:
    return kernel["undivided"]["time_us"] / best["time_us"]


BLOCKS = {"mucudnn-search-space": search_space, "mucudnn-one-byte": one_byte}
TABLES = [EIGHT_MIB]
