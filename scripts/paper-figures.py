#!/usr/bin/env python3
"""Draws mu-cuDNN's figures 1, 8 and 11, and the arXiv version's 12, from recorded profiles, and prints the numbers of 8 and 11:
no GPU needed; pictures need matplotlib.

usage: scripts/paper-figures.py deepbench NETWORK:TYPES:LIMIT PROFILE .. [--operations O] [--output FILE.svg]
       scripts/paper-figures.py totals NETWORK:BATCH:TYPES[:LIMIT,..] PROFILE .. [--output FILE.svg]
       scripts/paper-figures.py layers NETWORK:BATCH:TYPES:SIZES@LIMIT,.. PROFILE .. --output FILE.svg

deepbench: gain of each layer of DeepBench over its best undivided algorithm under LIMIT, by the size of its filters; layers that the profiles lack
are counted apart. totals: all kernels under an equal limit each (WR, undivided and fit), and the same memory as one total (WD, fit). layers: memory
of each layer (tensors and their gradients, workspaces of the three operations) and its time under several limits side by side, such as
undivided@512,fit@64 in MiB; the numbers are in docs/papers.md. The other figures are `tightfit optimize --picture`: 9 is limits, 10 is front, 12 is
allotment.

Source: Oyama et al. 2018, figures 1, 8 and 11; its arXiv version, figure 12.
"""

import argparse
import io
import json
import pathlib
import statistics
import subprocess

import dark_pages
from paper_tables.halves import sentence
from paper_tables.mucudnn import MIB, by_layer

# The message of `tightfit` about a kernel that was not recorded.
MISSING = "no measured micro-batch sizes add up"
# The paper's largest gain of a layer of DeepBench.
LARGEST = 4.54
# Okabe and Ito 2008: color-blind safe.
GREY, BLUE, ORANGE, GREEN = "#999999", "#0072B2", "#E69F00", "#009E73"


def plots():
    """matplotlib's pyplot, whose same drawing gives the same file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "tightfit", "svg.fonttype": "none"})
    from matplotlib import pyplot

    return pyplot


def optimize(options, *arguments):
    """The answer of `tightfit optimize`, or None where the profiles have nothing of a kernel."""
    command = [options.tightfit, "optimize", *map(str, arguments), "--format", "json"]
    command += ["--backend", "replay:" + ",".join(options.profiles)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        return json.loads(result.stdout)
    if MISSING in result.stderr:
        return None
    raise SystemExit(result.stderr)


def filters(problem):
    """`3x3` of a problem's text; how its window's `r` and `s` are written."""
    words = {word[0]: word[1:] for word in problem.split() if word[0] in "rs" and word[1:].isdigit()}
    return f"{words['r']}x{words['s']}"


def deepbench(options):
    network, types, limit = options.case.split(":")
    of = [network, "--types", types, "--workspace", limit, "--operations", options.operations]
    answers = [optimize(options, *of)]
    if answers == [None]:
        listed = subprocess.run(
            [options.tightfit, "networks", network, "--format", "json"], capture_output=True, text=True, check=True
        )
        names = [row["layer"] for row in json.loads(listed.stdout) if row["kind"] == "convolution"]
        answers = [optimize(options, *of, "--layers", name) for name in names]
    kernels = [kernel for answer in answers if answer for kernel in answer["kernels"]]
    missing = answers.count(None)
    sizes = {}
    for kernel in kernels:
        gain = kernel["undivided"]["time_us"] / kernel["time_us"]
        half = any("f32" in part["algorithm"] for part in kernel["configuration"])
        sizes.setdefault(filters(kernel["problem"]), []).append((gain, half, len(kernel["configuration"]) > 1))
    sizes = dict(sorted(sizes.items(), key=lambda size: [int(edge) for edge in size[0].split("x")]))
    everything = [one for found in sizes.values() for one in found]
    print("| filters | kernels | least gain | mean | largest | divided | PSEUDO_HALF |")
    print("|---" * 7 + "|")
    for size, found in [*sizes.items(), ("all", everything)]:
        gains = [gain for gain, *_ in found]
        figures = " | ".join(f"{f(gains):.2f}" for f in (min, statistics.mean, max))
        print(f"| {size} | {len(found)} | {figures} | {sum(d for *_, d in found)} | {sum(h for _, h, _ in found)} |")
    before, after = (sum(k["undivided"]["time_us"] for k in kernels), sum(k["time_us"] for k in kernels))
    halves = [divided for _, half, divided in everything if half]
    print(f"{missing} layers not recorded; {before / 1e3:.1f} ms undivided, {after / 1e3:.1f} ms divided;")
    share, divided = 100 * len(halves) / len(everything), sum(d for *_, d in everything)
    print(f"PSEUDO_HALF in {share:.0f}% of the kernels, {sum(halves)} of the {divided} that divide")
    if types == "f16":
        print(sentence(kernels, options.profiles))
    far = [kernel for kernel in kernels if kernel["undivided"]["time_us"] / kernel["time_us"] > LARGEST]
    if far:
        most, least = max(k["undivided"]["workspace_bytes"] for k in far), min(k["workspace_bytes"] for k in far)
        taken = f"at most {most / 2**10:.1f} KiB undivided, at least {least / MIB:.0f} MiB divided"
        print(f"{len(far)} kernels gain more than {LARGEST}: in workspaces of {taken}")

    if not options.output:
        return
    figure, axes = plots().subplots(figsize=(6, 3.5))
    for place, found in enumerate(sizes.values()):
        gains = [gain for gain, *_ in found]
        axes.plot([place, place], [min(gains), max(gains)], color=GREY, marker="_", markersize=12)
        axes.plot(place, statistics.mean(gains), "o", color=BLUE)
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_xticks(range(len(sizes)), [f"{size}\n({len(found)})" for size, found in sizes.items()])
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("filters (kernels)")
    axes.set_ylabel("gain over undivided")
    axes.set_title(f"{network} {options.operations}, {types}, {limit} a kernel: least, mean, largest", fontsize=10)
    save(figure, options)


def totals(options):
    network, batch, types, *limits = options.case.split(":")
    limits = [int(limit) for limit in (limits[0] if limits else "8,16,32,64,512").split(",")]
    of = [network, "--batch", batch, "--types", types]
    rows = []
    for limit in limits:
        wr = optimize(options, *of, "--workspace", f"{limit}MiB")
        total = limit * len(wr["kernels"])
        wd = optimize(options, *of, "--total-workspace", f"{total}MiB")
        rows.append((total, wr["undivided_time_us"] / 1e3, wr["time_us"] / 1e3, wd["time_us"] / 1e3))
    print("| total | WR undivided | WR, fit | WD, fit |")
    print("|---" * 4 + "|")
    for limit, (total, *times) in zip(limits, rows, strict=True):
        print(f"| {total // limit} x {limit} = {total} MiB | " + " | ".join(f"{time:.2f}" for time in times) + " |")

    if not options.output:
        return
    figure, axes = plots().subplots(figsize=(6, 3.5))
    for bar, (label, color) in enumerate([("WR undivided", GREY), ("WR, fit", BLUE), ("WD, fit", ORANGE)]):
        axes.bar([place + 0.27 * (bar - 1) for place in range(len(rows))], [row[bar + 1] for row in rows], 0.25, label=label, color=color)
    axes.set_xticks(range(len(rows)), [f"{limit} MiB each\n{row[0]} in all" for limit, row in zip(limits, rows, strict=True)], fontsize=8)
    axes.set_ylabel("ms, all kernels")
    axes.set_title(f"{network} {batch}, {types}: a limit each (WR) and one total (WD)", fontsize=10)
    axes.legend(frameon=False)
    save(figure, options)


def layers(options):
    network, batch, types, *cases = options.case.split(":")
    cases = [case.split("@") for case in cases[0].split(",")]
    answers = []
    for sizes, limit in cases:
        of = [network, "--batch", batch, "--types", types, "--sizes", sizes]
        answers.append(by_layer(optimize(options, *of, "--workspace", f"{limit}MiB")))
    names = list(answers[0])
    figure, axes = plots().subplots(figsize=(max(6, 0.55 * len(names)), 4))
    times, width = axes.twinx(), 0.8 / len(cases)
    for place, ((sizes, limit), found, color) in enumerate(zip(cases, answers, [BLUE, ORANGE, GREEN], strict=False)):
        at = [index + width * (place - (len(cases) - 1) / 2) for index in range(len(names))]
        data, workspace, time = zip(*(found[name] for name in names), strict=True)
        data, workspace = ([value / MIB for value in values] for values in (data, workspace))
        axes.bar(at, data, 0.9 * width, color=GREY, label=None if place else "tensors and gradients")
        axes.bar(at, workspace, 0.9 * width, bottom=data, color=color, label=f"workspaces, {limit} MiB, {sizes}")
        times.plot(at, [value / 1e3 for value in time], "o", color=color, markeredgecolor="black")
    axes.set_xticks(range(len(names)), names, rotation=60 if len(names) > 8 else 0)
    axes.set_ylabel("MiB (bars)")
    times.set_ylabel("ms, all three operations (points)")
    times.set_ylim(bottom=0)
    axes.set_ylim(top=1.35 * axes.get_ylim()[1])
    axes.set_title(f"{network} {batch}, {types}: memory and time of each layer", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    save(figure, options)


def save(figure, options):
    figure.tight_layout()
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    pathlib.Path(options.output).write_text(dark_pages.of_matplotlib(drawn.getvalue()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["deepbench", "totals", "layers"])
    parser.add_argument("case")
    parser.add_argument("profiles", nargs="+")
    parser.add_argument("--operations", default="forward")
    parser.add_argument("--output")
    parser.add_argument("--tightfit", default="target/release/tightfit")
    options = parser.parse_args()
    if options.figure == "layers" and not options.output:
        parser.error("layers draws a picture: give --output")
    {"deepbench": deepbench, "totals": totals, "layers": layers}[options.figure](options)


main()
