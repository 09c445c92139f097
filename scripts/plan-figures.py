#!/usr/bin/env python3
"""Draws, across networks, the vDNN paper's figures 12 (performance) and 13 (memory) from plans, and prints their numbers.

usage: scripts/plan-figures.py PLAN.json .. [--performance FILE.svg] [--memory FILE.svg] [--accounting paper|ours]
       scripts/plan-figures.py --rates h200|k40 [--tightfit PATH] ..

PLAN.json is the output of `tightfit plan .. --format json` for training. With --rates, the paper's networks are planned, under every policy and
`overlap`, within the paper's 12 GiB, and a plan that does not fit has no bar. Performance is the time of a step with everything resident and the
fastest algorithms, over the plan's time. Both are for the feature extraction layers alone, as in the paper: the time of the classifier (from the
first fully connected layer on) is taken off both, since it is the same. Memory is the most live bytes, compared with the network-wide baseline, in
the paper's accounting or ours.

    for p in vdnn-all vdnn-conv vdnn-dynamic; do for n in vgg19 googlenet; do
        tightfit plan $n --batch 128 --budget 12GiB --policy $p --assume --format json > $n-$p.json; done; done
    scripts/plan-figures.py *.json --performance performance.svg --memory memory.svg

Source: Rhu et al. 2016, figures 12 and 13.
"""

import argparse
import json
from html import escape

from dark_pages import DARK
from paper_tables.plans import performance as speed
from paper_tables.tables import Answers
from paper_tables.vdnn import CARD, DEEP, K40, NETWORKS, POLICIES, VGG

# One color for a policy in every figure. Okabe and Ito 2008: color-blind safe.
COLORS = {
    "baseline": "#999999",
    "baseline(m)": "#F0E442",
    "overlap(fit)": "#0072B2",
    "vdnn-all(m)": "#E69F00",
    "vdnn-all(p)": "#009E73",
    "vdnn-conv(m)": "#CC79A7",
    "vdnn-conv(p)": "#56B4E9",
    "vdnn-dynamic": "#D55E00",
}
OTHERS = "#000000"
LETTERS = {"memory": "m", "performance": "p", "fit": "fit"}
BAR, GAP, HEIGHT, LEFT, TOP = 18, 26, 260, 80, 70


def series(plan):
    if plan["policy"] == "vdnn-dynamic":
        return plan["policy"]
    return f"{plan['policy']}({LETTERS[plan['algorithms']]})"


def planned(rates, tightfit):
    """The plans of the paper's networks that fit its card."""
    networks = [(name, batch, profile) for name, batch, _, profile, _ in NETWORKS] + [(name, 32, VGG) for name, _ in DEEP[1:]]
    policies = [f"{policy} --divide off" for label, _, policy in POLICIES if label != "base(p)"] + ["--policy overlap"]
    commands = [
        f"plan {name} --batch {batch} --budget {CARD} {policy} {K40 if rates == 'k40' else f'--backend {profile}'}"
        for name, batch, profile in networks
        for policy in policies
    ]
    return [plan for plan in Answers(tightfit).all(commands) if "needs_gib" not in plan]


def network(plan):
    return f"{plan['network']} ({plan['batch']})"


def unique(words):
    return list(dict.fromkeys(words))


def bars(title, axis, groups, names, value, ticks):
    """A group of bars for each of `groups`, one for each of `names` that has a value."""
    slot = BAR * len(names) + GAP
    width = max(LEFT + slot * len(groups) + 20, LEFT + sum(9 * len(name) + 40 for name in names))
    most = ticks[-1]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + TOP + 110}" viewBox="0 0 {width} {HEIGHT + TOP + 110}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        DARK,
        '<rect class="paper" width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="24" font-size="16">{escape(title)}</text>',
    ]
    x = 16
    for name in names:
        color = COLORS.get(name, OTHERS)
        out.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{color}"/><text x="{x + 18}" y="48">{escape(name)}</text>')
        x += 9 * len(name) + 36
    for tick in ticks:
        y = TOP + HEIGHT * (1 - tick / most)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{width - 16}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = TOP + HEIGHT / 2
    out.append(f'<text x="24" y="{middle}" text-anchor="middle" transform="rotate(-90 24 {middle})">{escape(axis)}</text>')
    for at, group in enumerate(groups):
        left = LEFT + slot * at + GAP / 2
        for place, name in enumerate(names):
            color = COLORS.get(name, OTHERS)
            found = value(group, name)
            if found is not None:
                height = HEIGHT * found / most
                box = f'x="{left + BAR * place:.1f}" y="{TOP + HEIGHT - height:.1f}" width="{BAR - 2}" height="{height:.1f}"'
                out.append(f'<rect {box} fill="{color}"><title>{escape(f"{group}, {name}: {found:.3g}")}</title></rect>')
        x, y = left + BAR * len(names) / 2, TOP + HEIGHT + 14
        out.append(f'<text x="{x:.1f}" y="{y}" text-anchor="end" transform="rotate(-35 {x:.1f} {y})">{escape(group)}</text>')
    return "\n".join(out) + "\n</svg>\n"


def scale(most):
    """Round numbers from zero to at least `most`."""
    step = next(s * 10**p for p in range(-3, 6) for s in (1, 2, 5) if s * 10**p * 6 >= most)
    return [step * i for i in range(int(-(-most // step)) + 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", metavar="PLAN.json")
    parser.add_argument("--rates", choices=["h200", "k40"])
    parser.add_argument("--tightfit", default="target/release/tightfit", help="from the repository's root")
    parser.add_argument("--performance", metavar="FILE.svg")
    parser.add_argument("--memory", metavar="FILE.svg")
    parser.add_argument("--accounting", choices=["paper", "ours"], default="paper")
    options = parser.parse_args()
    plans = planned(options.rates, options.tightfit) if options.rates else []
    for path in options.plans:
        with open(path, encoding="utf-8") as file:
            plans.append(json.load(file))
    groups, names = unique(map(network, plans)), sorted(unique(map(series, plans)))
    found = {(network(plan), series(plan)): plan for plan in plans}

    def performance(group, name):
        plan = found.get((group, name))
        return plan and speed(plan)

    def memory(group, name):
        """GB of 10^9 bytes, as the paper has them."""
        if name == "baseline":
            return next(p for (g, _), p in found.items() if g == group)["accounting"][options.accounting]["baseline_bytes"] / 1e9
        plan = found.get((group, name))
        return plan and plan["accounting"][options.accounting]["maximum_bytes"] / 1e9

    print("| network | policy | performance | maximum [GB] | average [GB] | baseline [GB] | offloaded [GB] |")
    print("|---" * 7 + "|")
    for plan in plans:
        taken = plan["accounting"][options.accounting]
        bytes_ = [taken["maximum_bytes"], taken["average_bytes"], taken["baseline_bytes"], plan["offloaded_bytes"]]
        columns = [network(plan), series(plan), f"{performance(network(plan), series(plan)):.3f}"]
        print(f"| {' | '.join(columns + [f'{value / 1e9:.2f}' for value in bytes_])} |")
    if options.performance:
        axis = "performance, 1 = all resident, fastest"
        with open(options.performance, "w", encoding="utf-8") as file:
            file.write(bars("time of the feature extraction layers", axis, groups, names, performance, scale(1)))
    if options.memory:
        names = ["baseline"] + [name for name in names if not name.startswith("baseline")]
        most = max(memory(group, name) or 0 for group in groups for name in names)
        with open(options.memory, "w", encoding="utf-8") as file:
            file.write(bars("maximum memory", f"GB, {options.accounting} accounting", groups, names, memory, scale(most)))


main()
