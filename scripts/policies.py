#!/usr/bin/env python3
"""Prints, for rising workspace limits, what each size policy gives on a recorded profile and what it costs.

usage: scripts/policies.py NETWORK BATCH PROFILE[,PROFILE ..] [--policies undivided,power-of-two,all,fit] [--limits 8,64]
       [--types f32] [--tightfit PATH]

Times are milliseconds over all kernels of the network, limits MiB per kernel. `cost` is one call of every candidate that
a policy asks for, over that of power-of-two's candidates within the limit.
"""

import argparse
import json
import subprocess


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("batch", type=int)
    parser.add_argument("profile")
    parser.add_argument("--policies", default="undivided,power-of-two,all,fit")
    parser.add_argument("--limits", default="8,12,16,24,32,48,64,96,128,192,256,384,512")
    parser.add_argument("--types", default="f32")
    parser.add_argument("--tightfit", default="target/release/tightfit")
    options = parser.parse_args()
    policies = options.policies.split(",")
    reference = "all" if "all" in policies else "power-of-two"
    print(f"| limit | {' | '.join(policies)} | fit over {reference} | cost of fit |")
    print("|---" * (len(policies) + 3) + "|")
    for limit in options.limits.split(","):
        time, cost = {}, {}
        for policy in policies:
            command = [options.tightfit, "optimize", options.network, "--batch", str(options.batch)]
            command += ["--workspace", f"{limit}MiB", "--sizes", policy, "--no-baseline", "--format", "json"]
            command += ["--types", options.types, "--backend", f"replay:{options.profile}"]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode == 3:
                time[policy] = cost[policy] = float("nan")
                continue
            result.check_returncode()
            result = json.loads(result.stdout)
            time[policy] = result["time_us"] / 1e3
            cost[policy] = result["profiling"]["kernel_time_us"]
        times = " | ".join(f"{time[policy]:.1f}" for policy in policies)
        print(f"| {limit} MiB | {times} | {time['fit'] / time[reference]:.4f} | {cost['fit'] / cost['power-of-two']:.2f} |")


main()
