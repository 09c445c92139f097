#!/usr/bin/env python3
"""Measures how long a step keeps the host, plain and within a budget, in turns. Prints a line of JSON for each model and share.

usage: scripts/fit-host.py [MODEL ..] [--shares 60 40] [--batch 8] [--steps 20] [--device cpu|cuda] [--size 224]

MODEL is a classifier of torchvision, in fp32. With a mini-batch of 8, a GPU waits for its host, so these times are the host's. A CPU computes as well:
there, use --size 64. MODEL:BATCH is a case of scripts/gpu-fit.sh, in bf16 by autocast and channels last. Shares are percents of the memory that plain needs. `host_ms` is the time until the step is queued, `step_ms` ends with the device; both are
medians, plain first. Plain and fitted steps run in two processes that take turns, so neither counts in the other's memory.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

# Steps of each turn; the last one is timed.
TURN = 3
# Turns before the first one that counts: the first passes of a plan are watched, and the plan may change after them.
SETTLING = 10
MODELS = "resnet50", "efficientnet_v2_s", "regnet_y_3_2gf", "densenet121"


def side(name, share, options):
    """Takes a turn for each line that is read, and writes its times; a share of None is plain. The last line asks for the peak."""
    import tightfit.torch as tt
    import torch
    import torchvision
    from tightfit.errors import DoesNotFit

    torch.set_num_threads(1)
    torch.manual_seed(0)
    is_case = ":" in name
    if is_case:
        sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu_run"))
        import fit_models

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        model, x, criterion, _ = fit_models.build(name)
        layout = {5: torch.channels_last_3d, 4: torch.channels_last}.get(x.dim(), torch.contiguous_format)
        model, x = model.cuda().to(memory_format=layout).train(), x.cuda().to(memory_format=layout)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    else:
        model = torchvision.models.get_model(name, num_classes=1000).to(options.device).train()
        x = torch.randn(options.batch, 3, options.size, options.size, device=options.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)

        def criterion(y):
            return y.float().square().mean()

    if share is not None:
        tt.fit(model, f"{share}%", optimizer=optimizer, loss=criterion)

    def timed():
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=is_case):
            loss = criterion(model(x))
        loss.backward()
        optimizer.step()
        queued = time.perf_counter()
        if x.is_cuda:
            torch.cuda.synchronize()
        return 1e3 * (queued - begin), 1e3 * (time.perf_counter() - begin)

    for line in sys.stdin:
        try:
            if line.strip() == "turn":
                answer = {"times": [timed() for _ in range(TURN)][-1]}
            else:
                answer = {"peak_bytes": torch.cuda.max_memory_allocated(), "device": torch.cuda.get_device_name()} if x.is_cuda else {}
        except DoesNotFit as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def compare(name, share, options):
    shape = [f"--{key}={getattr(options, key)}" for key in ("batch", "size", "device") if getattr(options, key) is not None]
    sides = [
        subprocess.Popen(
            [sys.executable, __file__, name, *shape, "--side", part], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TIGHTFIT_QUIET": "1"},
        )
        for part in ("plain", str(share))
    ]  # fmt: skip

    def ask(process, line):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    about = {"model": name, "share": share, "batch": int(name.partition(":")[2] or options.batch)}
    try:
        turns = [[ask(process, "turn")["times"] for process in sides] for _ in range(SETTLING + options.steps)][SETTLING:]
        host, step = ([statistics.median(turn[at][kind] for turn in turns) for at in (0, 1)] for kind in (0, 1))
        plain, fitted = (ask(process, "peak") for process in sides)
        peaks = [plain.get("peak_bytes"), fitted.get("peak_bytes")]
        return {**about, **fitted, "host_ms": host, "step_ms": step, "over": step[1] / step[0] - 1, "peak_bytes": peaks}
    except (RuntimeError, ValueError) as error:
        return {**about, "error": str(error)}
    finally:
        for process in sides:
            process.stdin.close()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--shares", type=int, nargs="+", default=[60, 40])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is None:
        for name in options.models:
            for share in options.shares:
                print(json.dumps(compare(name, share, options)), flush=True)
        return
    import torch

    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    side(options.models[0], None if options.side == "plain" else int(options.side), options)


if __name__ == "__main__":
    main()
