#!/usr/bin/env python3
"""Compiled training steps of several GPUs by DistributedDataParallel and FSDP2, plain and within a budget a rank. Appends a line of JSON for each run.

usage: scripts/gpu-ranks.py --out FILE [--models resnet50,gpt2] [--engines ddp,fsdp] [--share 0.7] [--steps 16] [--seconds 280] [--tiny]

First comes plain `torch.compile`, then `backend="tightfit"` in a share of the largest peak that plain had on a rank. A line has, by rank: losses of the
first steps, the median of the steps of the second half, their peak, reserved bytes, the first step, and each plan's predicted bytes. Convolutions and
matrix products run in bf16, as in `gpu-compiled.py`. `--tiny` tries the script on CPUs, with small models and without Inductor.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu_run"))

# Losses that a line shows.
LOSSES = 4


def rank(options):
    """Trains in one process of the group, and prints its figures."""
    import torch
    import torch.distributed as dist
    from compiled_models import build
    from torch.distributed.fsdp import fully_shard

    number, device = int(os.environ["RANK"]), "cpu" if options.tiny else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = True
    if not options.tiny:
        torch.cuda.set_device(number)
    dist.init_process_group("gloo" if options.tiny else "nccl")
    torch.manual_seed(0)
    model, loss, _ = build(options.model, device, options.tiny)
    compiler = {"backend": "aot_eager" if options.tiny else "inductor"}
    if options.budget:
        compiler = {"backend": "tightfit", "options": {"budget": options.budget, "inner": "eager" if options.tiny else "inductor"}}
    if options.engine == "ddp":
        net = torch.compile(torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), **compiler)
    else:
        # FSDP2 takes contiguous weights. Blocks are compiled one by one, inside the hooks that gather their weights.
        model = model.to(memory_format=torch.contiguous_format)
        for block in blocks(model):
            block.compile(**compiler)
            fully_shard(block)
        fully_shard(model)
        net = model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, times, first = [], [], None
    # Graphs may be compiled once more in the first steps.
    half = options.steps // 2
    for at in range(options.steps):
        if at == half and not options.tiny:
            torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(at)
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=not options.tiny):
            value = loss(net)
        value.backward()
        optimizer.step()
        losses.append(value.item())
        times.append(1e3 * (time.perf_counter() - begin))
        first = first or times[0] / 1e3
    figures = {"rank": number, "losses": losses[:LOSSES], "step_ms": statistics.median(times[half:]), "first_step_s": first}
    if not options.tiny:
        figures.update(peak_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved())
    if options.budget:
        figures["plans"] = plans()
    print("FIGURES " + json.dumps(figures), flush=True)
    dist.destroy_process_group()


def plans():
    """Of each planned graph: the predicted peak and what its terms were, in bytes."""
    from tightfit._budget.compiled.held import all_held

    graphs = [(graph.planned, graph.plan.terms) for held in all_held() for graph in held.graphs.values() if graph.planned is not None]
    names = "outside", "later", "gradients"
    return [{"peak": one.peak, "kept": one.kept, "plain": one.plain, **{name: getattr(terms, name) for name in names}} for one, terms in graphs]


def blocks(model):
    """The parts of a model that are sharded one by one: members of its longest lists of modules, or the blocks of all stages of a ResNet."""
    from torch import nn

    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) > 1]
    stages = [getattr(model, f"layer{stage}", None) for stage in range(1, 5)]
    return [block for stage in stages for block in stage] if all(stages) else list(max(lists, key=len))


def run(options, model, engine, budget):
    """Starts a process for each rank. Returns their figures, or the end of their output."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--out", options.out, "--steps", str(options.steps), *["--tiny"] * options.tiny]
    command += ["--model", model, "--engine", engine, "--budget", str(budget)]
    started = []
    for number in range(2):
        about = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        started.append(subprocess.Popen(command, env={**os.environ, **about}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    ranks, failed = [], ""
    for process in started:
        try:
            out = process.communicate(timeout=options.seconds)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            out = process.communicate()[0] + f"\nno end within {options.seconds} s"
        told = [json.loads(line[8:]) for line in out.splitlines() if line.startswith("FIGURES ")]
        ranks += told
        failed = failed or ("" if told else out[-1500:])
        print("\n".join(line for line in out.splitlines() if line.startswith("tightfit")), file=sys.stderr)
    line = {"model": model, "engine": engine, "budget_bytes": budget or None, "ranks": ranks, **({"error": failed} if failed else {})}
    with Path(options.out).open("a") as out:
        out.write(json.dumps(line) + "\n")
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="resnet50,gpt2")
    parser.add_argument("--engines", default="ddp,fsdp")
    parser.add_argument("--share", type=float, default=0.7)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=280)
    parser.add_argument("--tiny", action="store_true")
    for one in ("--model", "--engine"):
        parser.add_argument(one, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model:
        return rank(options)
    for model in options.models.split(","):
        for engine in options.engines.split(","):
            plain = run(options, model, engine, 0)
            peaks = [one.get("peak_bytes", 1 << 30) for one in plain["ranks"]]
            if peaks:
                run(options, model, engine, int(options.share * max(peaks)))
    return None


if __name__ == "__main__":
    main()
