#!/usr/bin/env python3
"""Trains with programs that others wrote, plain and within a share of the memory that plain took, on this machine's GPU.

usage: scripts/gpu-programs.py FOLDER OUTPUT [--case NAME ..] [--share 60] [--steps 40] [--seconds 240] [--beside 1] [--tiny]

FOLDER holds checkouts: `classification` (pytorch/vision, references/classification), `imagenet` and `dcgan` (pytorch/examples), and `nanoGPT`
(karpathy/nanoGPT). The trainers of Transformers and Lightning are the installed ones (`gpu_run/trainers.py`). Nothing is fetched: pictures and texts
are random. With two GPUs, `classification` trains on both as well. Each run has a time limit, and its failure loses no other run.
OUTPUT/programs.jsonl gets a JSON line as each run is measured: `peak_bytes` and `step_ms` of `gpu_run/watched.py`, the exit code, tightfit's
lines, and whether the last weights equal plain's. Runs that are in it are not repeated. With --beside N, N programs start at once, since compiling
takes long, and take turns when they are timed. The output of programs is in OUTPUT/CASE-VARIANT.log. TIGHTFIT names the command (by default the
package's, which PYTHON has). --tiny makes everything small enough for a CPU: there, shares are of plain's predicted peak.
"""

import argparse
import concurrent.futures
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def cases(folder, data, tiny):
    """Each program: its folder, its arguments, its environment, and the launcher of its Python, if any."""
    import torch

    device = "cpu" if tiny else "cuda"
    workers = "0" if tiny else "12"
    pictures = ["--data-path", str(data / "pictures"), "--device", device, "--output-dir", "", "--epochs", "1000", "-j", workers]
    # At its own rate, the loss of random pictures may become NaN, and updates that are skipped are not counted.
    pictures += ["--lr", "0.01"]
    pictures += ["-b", "7", "--train-crop-size", "128", "--val-resize-size", "128", "--val-crop-size", "128"] if tiny else ["-b", "128"]
    amp = [] if tiny else ["--amp"]
    network = "shufflenet_v2_x0_5" if tiny else "resnet50"
    batch = ["-b", "4"] if tiny else ["-b", "128", "-j", workers]
    gan = ["--batchSize", "8", "--ngf", "8", "--ndf", "8"] if tiny else ["--batchSize", "500", "--ngf", "128", "--ndf", "128", "--accel"]
    gpt = ["--n_layer=4", "--n_head=2", "--n_embd=32", "--block_size=64", "--batch_size=4", "--device=cpu"] if tiny else ["--batch_size=16"]
    gpt += ["--dataset=random", "--gradient_accumulation_steps=4", "--eval_iters=2", "--eval_interval=15"]
    small = ["--tiny", "--batch", "8", "--workers", "0"] if tiny else []
    found = {
        "classification": (folder / "classification", ["train.py", "--model", network, *pictures, *amp], {}),
        "classification-deterministic": (
            folder / "classification",
            ["train.py", "--model", network, *pictures, *amp, "--use-deterministic-algorithms"],
            {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        ),
        "imagenet": (folder / "imagenet", ["main.py", "--dummy", "--arch", network, *batch, "--epochs", "1"], {}),
        "dcgan": (folder / "dcgan", ["main.py", "--dataset", "fake", "--manualSeed", "1", "--niter", "1000", "--outf", str(data), "--workers", workers, *gan], {}),
        "nanogpt": (data / "nanoGPT", ["train.py", f"--out_dir={data}", "--compile=False", *gpt], {}),
        "nanogpt-compiled": (data / "nanoGPT", ["train.py", f"--out_dir={data}", *gpt], {}),
    }
    if not tiny:
        vit = ["train.py", "--model", "vit_b_16", *pictures, *amp]
        found["classification-vit"] = (folder / "classification", vit, {})
        if torch.cuda.device_count() >= 2:
            torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2")
            for network, arguments in (("vit", vit), ("resnet", found["classification"][1])):
                found[f"classification-{network}-two-gpus"] = (folder / "classification", arguments, {}, *torchrun)
    for trainer in ("transformers", "lightning"):
        for network in ("vit", "resnet"):
            found[f"{trainer}-{network}"] = (data, [str(HERE / "gpu_run/trainers.py"), trainer, network, *small], {})
            found[f"{trainer}-{network}-compiled"] = (data, [str(HERE / "gpu_run/trainers.py"), trainer, network, "--compile", *small], {})
    segmentation = [str(HERE / "gpu_run/trainers.py"), "segmentation", "unet", "--compile", "--batch", "2", *small[:1]]
    found["segmentation-compiled"] = (data, segmentation, {})
    return found


def write_data(folder, data, tiny):
    """Random pictures in folders by class, and a copy of nanoGPT with a random text where it looks for one."""
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(0)
    # The last batch of an epoch is smaller than the others.
    for label in range(8):
        for part in ("train", "val"):
            place = data / "pictures" / part / str(label)
            place.mkdir(parents=True, exist_ok=True)
            for picture in range((3 if part == "train" else 1) if tiny else (165 if part == "train" else 20)):
                shape = (128, 128, 3) if tiny else (256, 256, 3)
                Image.fromarray(numbers.integers(0, 256, shape, dtype=np.uint8)).save(place / f"{picture}.jpg")
    if not (folder / "nanoGPT").is_dir():
        return
    texts = data / "nanoGPT/data/random"
    texts.mkdir(parents=True, exist_ok=True)
    for name in ("train.py", "model.py", "configurator.py"):
        (data / "nanoGPT" / name).write_text((folder / "nanoGPT" / name).read_text())
    for part in ("train", "val"):
        numbers.integers(0, 64, 1 << 18, dtype=np.uint16).tofile(texts / f"{part}.bin")
    if tiny:
        (texts / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))


def run(name, variant, budget, case, options, output):
    """One run, as a line."""
    place, arguments, environment, *launcher = case
    told = output / f"{name}-{variant}.json"
    told.unlink(missing_ok=True)
    python = os.environ.get("PYTHON", sys.executable)
    command = [python, *launcher, str(HERE / "gpu_run/watched.py"), str(told), str(options.steps), *arguments]
    if budget:
        tightfit = [os.environ["TIGHTFIT"]] if "TIGHTFIT" in os.environ else [python, "-m", "tightfit"]
        command = [*tightfit, "run", "--budget", str(budget), "--", *command]
    log = output / f"{name}-{variant}.log"
    begin = time.monotonic()
    with log.open("w") as file:
        environment = {**os.environ, **environment, **({"WATCHED_LOCK": str(output / "timed")} if options.beside > 1 else {})}
        # A separate session: the processes of torchrun end with it.
        with subprocess.Popen(command, cwd=place, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True) as process:
            try:
                code = process.wait(options.seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = "timeout"
    # Also behind a bar of progress on the same line.
    said = re.findall(r"tightfit: (.*)", log.read_text(errors="replace"))
    line = {"case": name, "variant": variant, "budget_bytes": budget, "exit": code, "seconds": round(time.monotonic() - begin, 1)}
    line.update(json.loads(told.read_text()) if told.exists() else {})
    return {**line, "said": said}


def predicted(line):
    """Plain's peak as a run under a budget that everything fits has predicted it: the peak of its largest model."""
    found = re.findall(r"predicted peak ([\d.]+) (\w+)", "\n".join(line["said"]))
    return int(max((float(size) * UNITS[unit] for size, unit in found), default=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--case", nargs="*")
    parser.add_argument("--share", type=int, default=60, help="percent of the bytes that plain had allocated at its peak")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=240.0, help="time limit of each run")
    parser.add_argument("--beside", type=int, default=1, help="programs that run side by side")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    table = output / "programs.jsonl"
    lines = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    there = {(line["case"], line.get("variant")): line for line in lines if line.get("exit") == 0}
    writing = threading.Lock()

    def tell(line):
        with writing, table.open("a") as file:
            file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)

    def once(name, variant, budget, plain=None):
        if (name, variant) in there:
            return there[name, variant]
        line = run(name, variant, budget, found[name], options, output)
        if plain is not None:
            line["weights_of_plain"] = line.get("weights") == plain.get("weights")
        tell(line)
        return line

    def measure(name):
        if not found[name][0].is_dir():
            tell({"case": name, "missing": str(found[name][0])})
            return
        plain = once(name, "plain", 0)
        peak = predicted(once(name, "fits", 1 << 40)) if options.tiny else plain.get("peak_bytes", 0)
        if peak:
            once(name, "budget", peak * options.share // 100, plain)

    with tempfile.TemporaryDirectory() as written:
        data = Path(written)
        write_data(folder, data, options.tiny)
        found = cases(folder, data, options.tiny)
        with concurrent.futures.ThreadPoolExecutor(options.beside) as pool:
            list(pool.map(measure, options.case or found))


if __name__ == "__main__":
    main()
