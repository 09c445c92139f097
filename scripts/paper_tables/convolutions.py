"""Of the vDNN paper: the share of a step that convolutions take, and the most that any policy can save with weights resident."""

import statistics
from typing import Any

from .plans import full_layers, functions
from .tables import Answers, Row, Table
from .vdnn import K40, NETWORKS, PAPERS, POLICIES, WIDE, commands, rows, shown

Json = dict[str, Any]
BASELINE = POLICIES[1:2]
PAPER = "more than 70 to 80% of all, more than 90% of feature extraction"


def shares(plan: Json) -> tuple[float, float]:
    """The convolutions' share of the time of all layers, and of the feature extraction layers."""
    full = full_layers(plan)
    times = {"all": 0.0, "features": 0.0, "convolutions": 0.0}
    for step in plan["steps"]:
        if step["action"] != "compute":
            continue
        taken = step["end_us"] - step["start_us"]
        times["all"] += taken
        times["features"] += taken * (step["layer"] not in full)
        times["convolutions"] += taken * ("configuration" in step)
    return times["convolutions"] / times["all"], times["convolutions"] / times["features"]


def both(*plans: Json) -> list[str]:
    return [f"{100 * share:.0f}%" for plan in plans for share in shares(plan)]


SHARES = Table(
    "vdnn-convolutions",
    [
        "network, mini-batch",
        *(f"{of}, {rates}" for rates in ("H200, recorded", "K40's rates") for of in ("of all layers", "of feature extraction")),
        "the paper (K40)",
    ],
    [*commands(BASELINE), *(command.replace("{rates}", K40) for command in commands(BASELINE))],
    [
        Row(row.labels, row.values, [PAPER if place == 0 else "-" if row.labels[0] not in PAPERS else "the same"])
        for place, row in enumerate(rows(True))
    ],
    both,
    shown=shown(True).replace("BUDGET", WIDE).replace("POLICY", "baseline").replace("ALGORITHMS", "performance").replace("--backend replay:PROFILE", "RATES"),
)


def most_saved(answers: Answers) -> str:
    """With weights resident, what is left where everything else is gone."""
    means, lowest = [], []
    for recorded in (False, True):
        found = dict(zip((name for *_, name, _, _ in NETWORKS), rows(recorded), strict=True))
        plans = answers.all(commands(BASELINE)[0].format(**found[name].values) for name in PAPERS)
        saved = [1 - functions(plan)["weights"] / plan["accounting"]["paper"]["baseline_bytes"] for plan in plans]
        means.append(100 * statistics.mean(saved))
        lowest.append(100 * saved[PAPERS.index("OverFeat 128")])
    return (
        f"With weights resident, no policy can save more of the average over the six cases than {means[0]:.0f}% (K40's rates) or "
        f"{means[1]:.0f}% (H200);\nof OverFeat, not more than {lowest[0]:.0f} or {lowest[1]:.0f}%. The paper prints 92% for all(m), and 83% for OverFeat.\n"
    )


BLOCKS = {"vdnn-most-saved": most_saved}
TABLES = [SHARES]
