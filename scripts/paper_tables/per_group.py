"""AlexNet as Caffe calls cuDNN, once for each group: the mu-cuDNN paper's figures 6, 9, 10 and 12, and its memory."""

from typing import Any

from .mucudnn import (
    EVERY_RULE,
    LEGACY_ALL,
    MAIN,
    MIB,
    ONE_COLUMN,
    PAPER_GAINS,
    RECORDED,
    THREE_SIZES,
    TWO_GROUPS,
    figure_9,
    figure_10_cells,
    gib,
    slowdown,
    wr_and_wd,
)
from .tables import GIB, Row, Table

Json = dict[str, Any]
PER_GROUP = f"replay:{RECORDED}alexnet-per-group.jsonl.gz"
LAYERS = "optimize scripts/alexnet-per-group.txt"
CONV2 = f"{LAYERS} --layers conv2a --operations forward"
FIGURE_9 = figure_9("mucudnn-figure-9-per-group", LAYERS, PER_GROUP, THREE_SIZES, PAPER_GAINS)

# The paper's configurations in 64 MiB; its FFT of the whole mini-batch has no limit.
PAPER = ["1, GEMM, 4.3 KiB", "FFT, 8 x 32, 48.9 MiB", "-", "2.33, FFT and Winograd"]
FIGURE_10 = Table(
    "mucudnn-figure-10",
    ["limit", "sizes", "configuration", "workspace (MiB)", "time (ms)", "over undivided", "the paper (P100)"],
    [f"{CONV2} --workspace {{limit}}MiB --sizes {{sizes}} --backend {PER_GROUP}"],
    [
        *(
            Row(["64 MiB", sizes], {"limit": "64", "sizes": sizes}, [paper])
            for sizes, paper in zip(EVERY_RULE, PAPER, strict=True)
        ),
        Row(["213 MiB", "undivided"], {"limit": "213", "sizes": "undivided"}, ["213 MiB: FFT undivided"]),
        Row(["512 MiB", "undivided"], {"limit": "512", "sizes": "undivided"}, ["-"]),
    ],
    figure_10_cells,
    shown=f"{CONV2} --workspace LIMIT --sizes SIZES --backend {PER_GROUP}",
)


def layer(kernel: Json) -> str:
    """The layer of a group's kernel."""
    return kernel["layer"].rstrip("ab")


def shared_workspace(answer: Json, of: str = "") -> float:
    """Bytes of all workspaces where the groups of a layer, one after another, share one."""
    most: dict[tuple[str, str], float] = {}
    for kernel in answer["kernels"]:
        place = layer(kernel), kernel["operation"]
        most[place] = max(most.get(place, 0), (kernel[of] if of else kernel)["workspace_bytes"])
    return sum(most.values())


ONCE_A_GROUP = Row(
    ["AlexNet once a group (`scripts/alexnet-per-group.txt`), both families, fit", "`h200-alexnet-per-group`"],
    commands=[
        f"{LAYERS} --workspace 512MiB --sizes undivided --backend {PER_GROUP}",
        f"{LAYERS} --workspace 64MiB --sizes fit --backend {PER_GROUP}",
    ],
    read=lambda wide, narrow: [
        f"{shared_workspace(wide, 'undivided') / GIB:.2f} GiB",
        f"{shared_workspace(narrow) / GIB:.2f} GiB",
        slowdown(wide, narrow),
    ],
)
MEMORY = Table(
    "mucudnn-memory",
    ["network, algorithms", "PROFILE", "512 MiB, undivided", "64 MiB, divided", "time of the latter"],
    [
        "{of} --workspace 512MiB --sizes undivided --backend {profile}",
        "{of} --workspace 64MiB --sizes {sizes} --backend {profile}",
    ],
    [
        ONCE_A_GROUP,
        Row(
            ["AlexNet in two groups, both families, fit", "`h200-2026-11-21`"],
            {"of": TWO_GROUPS, "sizes": "fit", "profile": MAIN},
        ),
        Row(
            ["AlexNet in one column, legacy interface, all", "`h200-legacy-alexnet-1col-all`"],
            {"of": ONE_COLUMN, "sizes": "all", "profile": LEGACY_ALL},
        ),
        Row(
            ["the same in tf32, both families, fit", "`h200-2026-11-21`"],
            {"of": f"{ONE_COLUMN} --types tf32", "sizes": "fit", "profile": MAIN},
        ),
    ],
    lambda wide, narrow: [gib("undivided")(wide)[0], gib()(narrow)[0], slowdown(wide, narrow)],
    shown="optimize NETWORK --batch 256 --types TYPES --workspace LIMIT --sizes SIZES --backend replay:PROFILE",
)


def shares(_wr: Json, answer: Json) -> list[str]:
    """The bytes of the total for conv1 to conv5, the part of conv2 and conv3, and the most of a kernel of conv4 and conv5."""
    of = dict.fromkeys((f"conv{n}" for n in range(1, 6)), 0.0)
    for kernel in answer["kernels"]:
        of[layer(kernel)] += kernel["workspace_bytes"]
    most = max(kernel["workspace_bytes"] for kernel in answer["kernels"] if layer(kernel) in ("conv4", "conv5"))
    two = 100 * (of["conv2"] + of["conv3"]) / sum(of.values())
    return [wr_and_wd(_wr, answer)[4], *(f"{taken / MIB:.1f}" for taken in of.values()), f"{two:.1f}%", f"{most / MIB:.1f}"]


TOTAL = "--total-workspace {total}MiB"
FIGURE_12 = Table(
    "mucudnn-figure-12-per-group",
    [
        "total, of 24 kernels",
        "WD over WR undivided",
        *(f"conv{n} (MiB)" for n in range(1, 6)),
        "conv2 and conv3",
        "largest kernel of conv4, conv5",
        "the paper (P100, 15 kernels)",
    ],
    [f"{LAYERS} --workspace {{each}}MiB --backend {PER_GROUP}", f"{LAYERS} {TOTAL} --backend {PER_GROUP}"],
    [
        Row(["120 MiB, 5 each"], {"each": "5", "total": "120"}, ["1.38; 93.7%, at most 3 MiB"]),
        Row(["192 MiB, 8 each"], {"each": "8", "total": "192"}, ["-"]),
    ],
    shares,
    shown=f"{LAYERS} --workspace EACH --backend {PER_GROUP}`, and `tightfit {LAYERS} --total-workspace ALL --backend {PER_GROUP}",
)
TABLES = [FIGURE_9, FIGURE_10, FIGURE_12, MEMORY]
