#!/usr/bin/env python3
"""Prints what measuring costs under each size policy on this machine: one call of every candidate, and the wall clock.

usage: scripts/profiling-cost.py NETWORK [--batch N] [--policies power-of-two,fit] [--limits 64] [--tightfit PATH]
       [--before PATH] [-- OPTION ..]

Every profile starts from nothing (`--cache none`). Options that follow `--` go to `tightfit profile`, such as
`-- --backend cuda --types bf16 --layout nhwc --layers depthwise`. Limits are MiB per kernel. `of power-of-two` divides
fit by power-of-two: one call of each, and the wall clock. To compare two builds, name the older one with `--before PATH`.

    scripts/profiling-cost.py scripts/slow-layers.txt --policies fit -- --backend cuda --types bf16 --layout nhwc
"""

import argparse
import json
import subprocess
import sys


def profile(tightfit, options, policy, limit):
    command = [tightfit, "profile", options.network, "--sizes", policy, "--workspace", f"{limit}MiB"]
    command += ["--batch", options.batch] if options.batch else []
    command += ["--cache", "none", "--format", "json", *options.rest]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--batch")
    parser.add_argument("--policies", default="power-of-two,fit")
    parser.add_argument("--limits", default="64")
    parser.add_argument("--tightfit", default="target/release/tightfit")
    parser.add_argument("--before")
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    options.rest = arguments[end + 1 :]
    builds = [("before", options.before)] if options.before else []
    builds += [("now", options.tightfit)]
    print("| limit | policy | build | measurements | one call of each | measuring | wall clock | of power-of-two |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for limit in options.limits.split(","):
        for build, tightfit in builds:
            power = None
            for policy in options.policies.split(","):
                found = profile(tightfit, options, policy, limit)
                seconds = [found[key] / 1e6 for key in ("kernel_time_us", "time_us", "wall_time_us")]
                power = seconds if policy == "power-of-two" else power
                of = f"{seconds[0] / power[0]:.2f}, {seconds[2] / power[2]:.2f}" if power and policy == "fit" else ""
                times = " | ".join(f"{time:.3f} s" for time in seconds)
                print(f"| {limit} MiB | {policy} | {build} | {found['measured']} | {times} | {of} |", flush=True)


main()
