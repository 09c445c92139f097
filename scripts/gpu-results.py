#!/usr/bin/env python3
"""Measures the figures of docs/results.md on real GPUs: profiles of the networks, the scaling of profiling over GPUs, the cost of policies, and
whether configurations run as predicted and compute the same.

usage: scripts/gpu-results.py TIGHTFIT OUTPUT [--devices N] [--seconds S] [--known PROFILE ..] [--only PATTERN]

Profiles given as known are not measured again, so that several short runs add up. --only takes the steps whose name matches a regular expression. The
scaling of profiling is measured on all devices together; the other steps are shared among the devices, one step per device at a time, in order of
importance. Writes OUTPUT/results.jsonl (one object per step: its command, time and output) and OUTPUT/profile.jsonl.gz (all measurements, to be
replayed). No step begins after S seconds.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
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
    ("resnet50", 64, "bf16", False),
    ("resnet50", 64, "f16-f32", False),
    ("alexnet", 256, "bf16", False),
    ("resnet18", 128, "tf32", False),
    ("resnet18", 128, "f16-f32", False),
    ("vgg16", 256, "tf32", False),
    ("googlenet", 128, "tf32", False),
    ("densenet40", 256, "tf32", False),
]
# DeepBench layer by layer: forward, as the paper has it.
LAYERS = [
    ("deepbench-x4", "f16", "64MiB"),
    ("deepbench-256", "f32", "64MiB"),
    ("deepbench-256", "f32", "256MiB"),
    ("deepbench-256", "f16", "64MiB"),
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
    ("alexnet-1col", 256, "f32", "64MiB", [*FILTER, "--beta", "1"]),
    ("alexnet-1col", 256, "f32", "64MiB", [*FILTER, "--beta", "0.5"]),
    ("alexnet-1col", 16, "f16-f32", "8MiB", [*FILTER, "--beta", "1"]),
    ("alexnet-1col", 16, "f16-f32", "8MiB", [*FILTER, "--beta", "0.5"]),
    ("resnet50", 32, "f32", "64MiB", []),
    ("resnet50", 32, "tf32", "64MiB", []),
    ("vgg16", 32, "f32", "64MiB", []),
    ("vgg16", 32, "tf32", "64MiB", []),
]
# One total, with a segment for each kernel; kernels that may overlap run on separate streams.
SIDE_BY_SIDE = [
    ("googlenet", 128, "f32", "1GiB", ["--operations", "forward"]),
    ("googlenet", 16, "f32", "256MiB", []),
    ("resnet50", 32, "f32", "2544MiB", ["--operations", "forward"]),
]


class Session:
    def __init__(self, options):
        self.tightfit = options.tightfit
        self.output = pathlib.Path(options.output)
        self.output.mkdir(parents=True, exist_ok=True)
        self.end = time.monotonic() + options.seconds
        self.only = re.compile(options.only)
        self.log = open(self.output / "results.jsonl", "w")
        self.lock = threading.Lock()

    def run(self, step, *arguments, cache, device=None, seconds=120):
        """Runs one command unless time is up. Returns its output as JSON, or None."""
        left = self.end - time.monotonic()
        if left < 5:
            print("no time for", step, flush=True)
            return None
        command = [self.tightfit, *map(str, arguments), "--backend", "cuda", "--cache", str(cache), "--format", "json"]
        environment = dict(os.environ)
        if device is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[device] if visible else str(device)
        started = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            out, err = process.communicate(timeout=min(left, seconds))
        except subprocess.TimeoutExpired:
            # Measurements are kept when it is asked to stop.
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        took = time.monotonic() - started
        try:
            printed = json.loads(out)
        except json.JSONDecodeError:
            printed = None
        entry = {"step": step, "command": " ".join(command[1:]), "seconds": round(took, 3), "exit": process.returncode}
        with self.lock:
            self.log.write(json.dumps({**entry, "result": printed, "messages": err[-2000:]}) + "\n")
            self.log.flush()
            print(f"{took:7.1f} s, exit {process.returncode}: {step} {err.strip()[-300:]}", flush=True)
        return printed

    def share_out(self, steps, devices):
        """Runs steps on all devices at once: each takes the next of the list as it gets free."""
        steps = [step for step in steps if self.only.search(step[0])]

        def work(device):
            while True:
                with self.lock:
                    if not steps:
                        return
                    name, carry_out = steps.pop(0)
                carry_out(name, device)

        workers = [threading.Thread(target=work, args=[device]) for device in range(devices)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def selection(network, batch, types):
    return [network, *(["--batch", batch] if batch else []), "--types", types]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tightfit")
    parser.add_argument("output")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--known", nargs="*", default=[])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    session = Session(options)
    shared = session.output / "results.db"
    for known in options.known:
        subprocess.run([options.tightfit, "cache", "import", known, "--cache", shared], check=True)

    # How profiling scales: the same work on 1, 2, 4, .. devices, each from nothing.
    count = 1
    while count <= options.devices and session.only.search("scale"):
        devices = ",".join(map(str, range(count)))
        cache = session.output / f"scale-{count}.db"
        arguments = ["profile", *selection("alexnet-1col", 256, "f32"), "--sizes", "power-of-two", "--workspace", "8GiB"]
        session.run(f"scale {count}", *arguments, "--devices", devices, cache=cache)
        count *= 2

    steps = []

    def step(name, *arguments, cache=shared, seconds=120):
        def carry_out(name, device):
            session.run(name, *arguments, cache=cache, device=device, seconds=seconds)

        steps.append((name, carry_out))

    for policy in ["power-of-two", "fit"]:
        arguments = ["profile", *selection("alexnet-1col", 256, "f32"), "--sizes", policy, "--workspace", "64MiB"]
        step(f"cost {policy}", *arguments, cache=session.output / f"cost-{policy}.db")
    profiles = [(*each, policies(*each)) for each in PROFILES]
    for name, arguments in [pair for *_, pairs in profiles[:4] for pair in pairs]:
        step(name, *arguments)
    verifies = [
        (f"verify {limit} {network} {batch} {types} {more}", [*selection(network, batch, types), "--workspace", limit, *more])
        for network, batch, types, limit, more in VERIFIES
    ]
    # Compared with new measurements of the same devices, not with another day's.
    fresh = session.output / "verify.db"
    for name, arguments in verifies[:4]:
        step(name, "verify", *arguments, cache=fresh, seconds=240)
    arguments = ["profile", *selection("alexnet-1col", 256, "f32"), "--sizes", "all", "--operations", "forward"]
    step("all sizes of five kernels", *arguments, "--workspace", "64MiB", cache=session.output / "all-sizes.db", seconds=60)
    for name, arguments in [pair for *_, pairs in profiles[4:] for pair in pairs]:
        step(name, *arguments)
    for network, types, limit in LAYERS:
        arguments = [*selection(network, None, types), "--operations", "forward", "--workspace", limit]
        step(f"layers {limit} {network} {types}", "optimize", *arguments, seconds=240)
    for network, batch, types, total in TOTALS:
        arguments = ["optimize", *selection(network, batch, types), "--total-workspace", total]
        step(f"total {total} {network} {batch} {types}", *arguments)
    for network, batch, types, total, more in SIDE_BY_SIDE:
        arguments = ["verify", *selection(network, batch, types), "--total-workspace", total, *more]
        step(f"side by side {total} {network} {batch} {types}", *arguments)
    steps.append(("-1 byte", lambda _, device: one_byte_below(session, "alexnet-1col", 256, "f32", shared, device)))
    for name, arguments in verifies[4:]:
        step(name, "verify", *arguments, cache=fresh, seconds=240)
    session.share_out(steps, options.devices)

    for cache, name in [(shared, "profile"), (session.output / "all-sizes.db", "all-sizes")]:
        if os.path.exists(cache):
            file = session.output / f"{name}.jsonl.gz"
            subprocess.run([options.tightfit, "cache", "export", str(file), "--cache", cache], check=False)


def one_byte_below(session, network, batch, types, cache, device):
    """Each kernel under a limit one byte below the workspace of its best undivided algorithm."""
    optimize = ["optimize", *selection(network, batch, types)]
    undivided = ["--sizes", "undivided", "--workspace", "8GiB"]
    best = session.run("best undivided", *optimize, *undivided, cache=cache, device=device)
    for kernel in (best or {}).get("kernels", []):
        workspace = kernel["undivided"]["workspace_bytes"]
        if workspace > 0:
            one = ["--layers", kernel["layer"], "--operations", kernel["operation"], "--workspace", workspace - 1]
            name = f"-1 byte {kernel['layer']} {kernel['operation']}"
            session.run(name, *optimize, *one, cache=cache, device=device)


def policies(network, batch, types, powers):
    """The profiles of one network, as names and arguments."""
    # The best undivided of all algorithms is the baseline of everything.
    wanted = [("power-of-two", "8GiB")] if powers else []
    wanted += [("undivided", "8GiB")] + [("fit", limit) for limit in LIMITS]
    return [
        (
            f"{policy} {limit} {network} {batch} {types}",
            ["profile", *selection(network, batch, types), "--sizes", policy, "--workspace", limit],
        )
        for policy, limit in wanted
    ]


main()
