#!/usr/bin/env python3
"""Prints the table of limits in docs/results.md from a recorded profile: no GPU needed.

usage: scripts/gpu-tables.py PROFILE[,PROFILE ..] [--tightfit PATH] [--limits 8,64,512,8192] [--divided NETWORK:BATCH:TYPES,..]

For every network in the profile: milliseconds of all kernels at each limit (MiB per kernel), with the best undivided
algorithm of cuDNN's legacy API, of its backend API and of both, and divided by each size policy. Power-of-two is printed
for the networks named by --divided, since its sizes were not measured for the others.
"""

import argparse
import gzip
import json
import subprocess

EVERY_POWER = "alexnet-1col:256:f32,alexnet-1col:256:tf32,alexnet-1col:256:f16-f32,alexnet:256:f32,resnet18:128:f32"
EVERY_POWER += ",resnet50:64:f32,resnet50:32:f32,vgg16:256:f32"


TYPES = ["f32", "tf32", "f16", "f16-f32", "bf16"]
# Smaller mini-batches were measured for verification alone.
LEAST_BATCH = 32


def read(paths):
    """Networks as {(name, batch, types): [(problem, mini-batch)]}, rows as {problem: [(algorithm, row)]}."""
    layers, rows = {}, {}
    for path in paths.split(","):
        with gzip.open(path, "rt") as file:
            for entry in map(json.loads, file):
                if "network" in entry:
                    network = entry["network"]
                    layers[network["name"], network["batch"]] = network["layers"]
                elif "problem" in entry:
                    found = rows.setdefault(entry["problem"], [])
                    found += [(entry["algorithm"], row) for row in entry["rows"] if row[1] is not None]
    networks = {}
    # A profile keeps one list of layers a network and mini-batch, whatever types were measured.
    for (name, batch), kernels in layers.items():
        for types in TYPES:
            typed = [(f"{problem.rsplit(' ', 1)[0]} {types}", size) for _, problem, size in kernels]
            if batch >= LEAST_BATCH and all(problem in rows for problem, _ in typed):
                networks[name, batch, types] = typed
    return networks, rows


def undivided(kernels, rows, limit, family):
    """Milliseconds of the fastest undivided algorithms of a family; None where a kernel has none within the limit."""
    total = 0
    for problem, batch in kernels:
        fits = (
            time
            for algorithm, (size, time, workspace, *_) in rows.get(problem, [])
            if size == batch and workspace <= limit and algorithm.startswith(family)
        )
        best = min(fits, default=None)
        if best is None:
            return None
        total += best
    return total / 1e6


def optimized(options, network, limit, policy):
    name, batch, types = network
    command = [options.tightfit, "optimize", name, "--batch", str(batch), "--types", types]
    command += ["--workspace", f"{limit}MiB", "--sizes", policy, "--format", "json"]
    command += ["--backend", f"replay:{options.profile}"]
    result = subprocess.run(command, capture_output=True, text=True)
    return json.loads(result.stdout) if result.returncode == 0 else None


def cell(time):
    return "-" if time is None else f"{time:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile")
    parser.add_argument("--tightfit", default="target/release/tightfit")
    parser.add_argument("--limits", default="8,64,512,8192")
    parser.add_argument("--divided", default=EVERY_POWER)
    options = parser.parse_args()
    powers = {tuple(each.split(":")) for each in options.divided.split(",")}
    networks, rows = read(options.profile)
    print("| network | limit | legacy | engines | both | power-of-two | fit | gain | workspace | divided |")
    print("|---" * 10 + "|")
    for network, kernels in sorted(networks.items()):
        name = f"{network[0]} b{network[1]} {network[2]}"
        for limit in options.limits.split(","):
            families = [undivided(kernels, rows, int(limit) << 20, family) for family in ("legacy:", "engine", "")]
            fit = optimized(options, network, limit, "fit")
            power = None
            if (network[0], str(network[1]), network[2]) in powers:
                power = optimized(options, network, limit, "power-of-two")
            if fit is None or families[2] is None:
                continue
            divided = sum(len(kernel["configuration"]) > 1 for kernel in fit["kernels"])
            cells = [*families, power and power["time_us"] / 1e3, fit["time_us"] / 1e3]
            gain = families[2] / (fit["time_us"] / 1e3)
            workspace = f"{fit['workspace_bytes'] / 2**20:.0f} MiB"
            times = " | ".join(map(cell, cells))
            print(f"| {name} | {limit} MiB | {times} | {gain:.2f} | {workspace} | {divided} of {len(kernels)} |")
            name = ""


main()
