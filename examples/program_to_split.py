#!/usr/bin/env python3
"""From an unmodified program to a mini-batch split over two unequal GPUs, and a picture of it.

usage: python examples/program_to_split.py [--gpus 0,1] [--batch N] [--workspace 64MiB] [--cache FILE.db]
           [--picture FILE.svg] [PROGRAM [ARGUMENT ..]]

    1. runs the program under `tightfit run` on each GPU, which measures its convolutions at every size
    2. takes it from the cache by its name: the front of its slowest kernel, and all its kernels within a limit
    3. splits its mini-batch over the GPUs, and draws the split

PROGRAM is a Python file or an executable; without one it is examples/train_cnn.py, which needs torch. The measurements stay
in the cache, so that a second run measures nothing. Needs the `tightfit` command, which TIGHTFIT_COMMAND can name, and
matplotlib.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib

import tightfit
from tightfit import plots

# Text that stays text: a picture that can be searched.
matplotlib.rcParams["svg.fonttype"] = "none"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="0,1", help="numbers of the GPUs [default: 0,1]")
    parser.add_argument("--batch", type=int, help="samples to split [default: the program's mini-batch]")
    parser.add_argument("--workspace", default="64MiB", help="limit per kernel [default: 64MiB]")
    parser.add_argument("--cache", type=Path, default=Path("program_to_split.db"), help="where measurements stay")
    parser.add_argument("--picture", type=Path, default=Path("program_to_split.svg"), help="the picture to draw")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="what to run, and its arguments")
    options = parser.parse_args()
    options.program = options.program or [Path(__file__).with_name("train_cnn.py")]
    return options


def record(program: list[str | Path], gpu: str, workspace: str, cache: Path) -> str:
    """Runs the program on one GPU, all its convolutions measured; returns the GPU's name and libraries."""
    command = os.environ.get("TIGHTFIT_COMMAND", "tightfit")
    python = [sys.executable] if Path(program[0]).suffix == ".py" else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        # A split needs every size of every convolution, so measure them all before the first step.
        thorough = ["--sizes", "all", "--tune", "first", "--tune-budget", "unlimited"]
        options = ["--workspace", workspace, *thorough, "--cache", cache, "--report", report]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
        try:
            subprocess.run([command, "run", *options, "--", *python, *program], env=environment, check=True)
        except FileNotFoundError:
            sys.exit(f"{command} was not found: build it with `cargo build --release`, and set TIGHTFIT_COMMAND to its path")
        except subprocess.CalledProcessError as error:
            sys.exit(f"{program[0]} failed on GPU {gpu} with exit code {error.returncode}")
        device = json.loads(report.read_text()).get("device")
    if device is None:
        sys.exit(f"{program[0]} ran no convolution on GPU {gpu}: `tightfit doctor --preload` checks the environment")
    return device


def main() -> None:
    options = arguments()
    name = Path(options.program[0]).name
    limit = options.workspace
    devices = [record(options.program, gpu, limit, options.cache) for gpu in options.gpus.split(",")]

    profile = tightfit.Profile.open(options.cache)
    for device in dict.fromkeys(devices):
        best = tightfit.optimize(name, workspace=limit, sizes="all", profile=profile, device=device)
        slowest = max(best.kernels, key=lambda kernel: kernel.time_us)
        front = tightfit.front(name, slowest.layer, slowest.operation, profile=profile, device=device)
        print(f"{device}: {len(best.kernels)} kernels in {best.time_us:.1f} us within {limit} each")
        for point in front.points:
            division = " + ".join(str(part.micro_batch) for part in point.configuration)
            print(f"    {slowest.layer} {slowest.operation}: {point.workspace_bytes} bytes, {point.time_us:.1f} us, {division}")

    mini_batches = [layer["mini_batch"] for layer in profile.layers if layer["network"] == name]
    batch = max(mini_batches) if options.batch is None else options.batch
    found = tightfit.split(batch, devices, network=name, profile=profile, workspace=limit)
    for device in found.devices:
        print(f"{device.device}: {device.batch} of {found.batch} samples, {device.time_us:.1f} us")
    plots.plot_split(found).figure.savefig(options.picture)
    print(f"drew {options.picture}")


if __name__ == "__main__":
    try:
        main()
    except tightfit.Error as error:
        sys.exit(str(error))
