#!/usr/bin/env python3
"""Measures on real GPUs what docs/results.md reports: profiles of the networks, how profiling scales over GPUs, what the
policies cost, and whether configurations run as predicted and compute the same.

usage: scripts/gpu-results.py TIGHTFIT OUTPUT [--devices N] [--seconds S] [--known PROFILE]

A profile given as known is not measured again, so that several short sessions on a device add up. Writes OUTPUT/results.jsonl (one object a step: what was run, how long, what it printed) and OUTPUT/profile.jsonl.gz (all
measurements, to be replayed). Steps are in order of importance; none is begun after S seconds.
"""

import argparse
import json
import os
import pathlib
import subprocess
import time

LIMITS = ["8MiB", "64MiB", "512MiB", "8GiB"]
# Network, mini-batch, types, whether power-of-two is measured as well (fit always is).
PROFILES = [
    ("alexnet-1col", 256, "f32", True),
    ("alexnet-1col", 256, "tf32", True),
    ("alexnet-1col", 256, "f16-f32", True),
    ("alexnet", 256, "f32", True),
    ("resnet50", 64, "f32", True),
    ("resnet50", 32, "f32", True),
    ("resnet18", 128, "f32", True),
    ("vgg16", 256, "f32", True),
    ("alexnet", 256, "tf32", True),
    ("alexnet", 256, "f16-f32", True),
    ("googlenet", 128, "f32", False),
    ("densenet40", 256, "f32", False),
    ("deepbench-256", None, "f32", False),
    ("resnet152", 128, "f32", False),
    ("resnet50", 64, "tf32", False),
    ("alexnet-1col", 256, "bf16", False),
    ("alexnet-1col", 256, "f16", False),
    ("vgg16", 256, "f16-f32", False),
    ("deepbench-x4", None, "f16", False),
]
# One total divided among all kernels (WD).
TOTALS = [
    ("alexnet-1col", 256, "f32", "120MiB"),
    ("alexnet-1col", 256, "tf32", "120MiB"),
    ("alexnet-1col", 256, "f16-f32", "120MiB"),
    ("alexnet", 256, "f32", "120MiB"),
    ("resnet50", 32, "f32", "2544MiB"),
    ("resnet50", 64, "f32", "2544MiB"),
    ("resnet152", 128, "f32", "4960MiB"),
]
FILTER = ["--operations", "backward-filter"]
# Large mini-batches for times; small ones, which the reference computes sooner, for errors. The smaller the mini-batch,
# the smaller a limit divides it.
VERIFIES = [
    ("alexnet-1col", 256, "f32", "64MiB", []),
    ("alexnet-1col", 256, "tf32", "64MiB", []),
    ("alexnet-1col", 256, "f16-f32", "64MiB", []),
    ("alexnet", 256, "f32", "64MiB", []),
    ("alexnet-1col", 16, "f32", "8MiB", [*FILTER, "--beta", "1"]),
    ("alexnet-1col", 16, "f32", "8MiB", [*FILTER, "--beta", "0.5"]),
    ("alexnet-1col", 16, "f16-f32", "8MiB", [*FILTER, "--beta", "1"]),
    ("alexnet-1col", 16, "f16-f32", "8MiB", [*FILTER, "--beta", "0.5"]),
    ("resnet50", 8, "f32", "16MiB", []),
    ("vgg16", 8, "f32", "64MiB", []),
]


class Session:
    def __init__(self, options):
        self.tightfit = options.tightfit
        self.output = pathlib.Path(options.output)
        self.end = time.monotonic() + options.seconds
        self.log = open(self.output / "results.jsonl", "w")

    def run(self, step, *arguments, cache, seconds=120):
        """Runs one command unless time is up; gives what it printed as JSON, or None."""
        left = self.end - time.monotonic()
        if left < 5:
            print("no time for", step, flush=True)
            return None
        command = [self.tightfit, *map(str, arguments), "--backend", "cuda", "--cache", str(cache), "--format", "json"]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=min(left, seconds))
        except subprocess.TimeoutExpired:
            # What was measured is kept when it is asked to stop.
            process.terminate()
            out, err = process.communicate()
        took = time.monotonic() - started
        try:
            printed = json.loads(out)
        except json.JSONDecodeError:
            printed = None
        entry = {"step": step, "command": " ".join(command[1:]), "seconds": round(took, 3), "exit": process.returncode}
        self.log.write(json.dumps({**entry, "result": printed, "messages": err[-2000:]}) + "\n")
        self.log.flush()
        print(f"{took:7.1f} s, exit {process.returncode}: {step} {err.strip()[-300:]}", flush=True)
        return printed


def selection(network, batch, types):
    return [network, *(["--batch", batch] if batch else []), "--types", types]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tightfit")
    parser.add_argument("output")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--known")
    options = parser.parse_args()
    session = Session(options)
    shared = "/tmp/results.db"
    if options.known:
        subprocess.run([options.tightfit, "cache", "import", options.known, "--cache", shared], check=True)
    every = ",".join(map(str, range(options.devices)))

    # How profiling scales: the same work on 1, 2, 4, .. devices, each from nothing.
    count = 1
    while count <= options.devices:
        devices = ",".join(map(str, range(count)))
        cache = f"/tmp/scale-{count}.db"
        arguments = ["profile", *selection("alexnet-1col", 256, "f32"), "--policy", "power-of-two", "--workspace", "8GiB"]
        session.run(f"scale {count}", *arguments, "--devices", devices, cache=cache)
        count *= 2
    for policy in ["power-of-two", "fit"]:
        arguments = ["profile", *selection("alexnet-1col", 256, "f32"), "--policy", policy, "--workspace", "64MiB"]
        session.run(f"cost {policy}", *arguments, cache=f"/tmp/cost-{policy}.db")

    for network, batch, types, powers in PROFILES[:4]:
        profile(session, network, batch, types, powers, every, shared)
    verify(session, VERIFIES[:4], shared)
    forward = ["--operations", "forward", "--workspace", "64MiB", "--devices", every]
    arguments = ["profile", *selection("alexnet-1col", 256, "f32"), "--policy", "all", *forward]
    session.run("all sizes of five kernels", *arguments, cache="/tmp/all-sizes.db", seconds=60)
    for network, batch, types, powers in PROFILES[4:]:
        profile(session, network, batch, types, powers, every, shared)
    for network, batch, types, total in TOTALS:
        arguments = ["optimize", *selection(network, batch, types), "--total-workspace", total, "--devices", every]
        session.run(f"total {total} {network} {batch} {types}", *arguments, cache=shared)
    one_byte_below(session, "alexnet-1col", 256, "f32", shared)
    verify(session, VERIFIES[4:], shared)

    for cache, name in [(shared, "profile"), ("/tmp/all-sizes.db", "all-sizes")]:
        if os.path.exists(cache):
            file = session.output / f"{name}.jsonl.gz"
            subprocess.run([options.tightfit, "cache", "export", str(file), "--cache", cache], check=False)


def verify(session, verifies, cache):
    for network, batch, types, limit, more in verifies:
        arguments = ["verify", *selection(network, batch, types), "--workspace", limit, *more]
        session.run(f"verify {limit} {network} {batch} {types} {more}", *arguments, cache=cache)


def one_byte_below(session, network, batch, types, cache):
    """Each kernel under a limit one byte below the workspace of its best undivided algorithm."""
    optimize = ["optimize", *selection(network, batch, types)]
    best = session.run("best undivided", *optimize, "--policy", "undivided", "--workspace", "8GiB", cache=cache)
    for kernel in (best or {}).get("kernels", []):
        workspace = kernel["undivided"]["workspace_bytes"]
        if workspace > 0:
            one = ["--layers", kernel["layer"], "--operations", kernel["operation"], "--workspace", workspace - 1]
            session.run(f"-1 byte {kernel['layer']} {kernel['operation']}", *optimize, *one, cache=cache)


def profile(session, network, batch, types, powers, devices, cache):
    if powers:
        arguments = ["profile", *selection(network, batch, types), "--policy", "power-of-two", "--workspace", "8GiB"]
        session.run(f"power-of-two {network} {batch} {types}", *arguments, "--devices", devices, cache=cache)
    # The best undivided of all algorithms is the baseline of everything.
    for policy, limits in [("undivided", ["8GiB"]), ("fit", LIMITS)]:
        for limit in limits:
            arguments = ["profile", *selection(network, batch, types), "--policy", policy, "--workspace", limit]
            session.run(f"{policy} {limit} {network} {batch} {types}", *arguments, "--devices", devices, cache=cache)


main()
