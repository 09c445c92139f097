#!/usr/bin/env python3
"""Compiled training steps within a byte budget, beside PyTorch's own knob, on one GPU; a JSON line for each cell.

    python3 scripts/gpu-compiled.py --out OUTPUT [--models resnet50,convnext,gpt2] [--shares 0.5,0.2,0] [--seconds 420]

For each model: `eager`; `compile`; `torch.compile` with `activation_memory_budget` b; and `backend="tightfit"` in as many bytes as each of these
took, and 2% more. Each cell is a process of its own with folders of its own for compiled code. The cells of a round (--beside) compile side by side,
with a part of the cores each; when all are done, they are timed one after the other.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

MODELS = {"resnet50": 256, "convnext": 128, "gpt2": 8, "vit_l": 128, "efficientnet": 128, "sd_unet": 8, "sd_vae": 4}


def build(name, batch):
    import torch
    from torch import nn

    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(n_layer=24, n_embd=1024, n_head=16, n_positions=1024, resid_pdrop=0.1, use_cache=False)).cuda()
        x = torch.randint(0, 50257, (batch, 1024), device="cuda")
        y = torch.randint(0, 50257, (batch, 1024), device="cuda")

        def loss(net):
            return nn.functional.cross_entropy(net(x).logits.flatten(0, 1), y.flatten())
    elif name == "sd_unet":
        from diffusers import UNet2DConditionModel

        model = UNet2DConditionModel(cross_attention_dim=768).cuda()
        x, t, c = torch.randn(batch, 4, 64, 64, device="cuda"), torch.full((batch,), 5, device="cuda"), torch.randn(batch, 77, 768, device="cuda")

        def loss(net):
            return net(x, t, c).sample.float().square().mean()
    elif name == "sd_vae":
        from diffusers import AutoencoderKL

        model = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=(128, 256, 512, 512), layers_per_block=2
        ).cuda()
        x = torch.randn(batch, 3, 256, 256, device="cuda")

        def loss(net):
            return (net(x).sample.float() - x).square().mean()
    else:
        import torchvision

        made = {"resnet50": "resnet50", "convnext": "convnext_base", "vit_l": "vit_l_16", "efficientnet": "efficientnet_v2_s"}[name]
        model = getattr(torchvision.models, made)().cuda().to(memory_format=torch.channels_last)
        x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        y = torch.randint(0, 1000, (batch,), device="cuda")

        def loss(net):
            return nn.functional.cross_entropy(net(x), y)

    return model.train(), loss


def cell(name, way, folder):
    """One cell, in this process."""
    import torch

    torch.manual_seed(0)
    model, loss = build(name, MODELS[name])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    net = model
    kind, _, value = way.partition("=")
    if kind == "b":
        torch._functorch.config.activation_memory_budget = float(value)
    if kind in ("b", "compile"):
        net = torch.compile(model)
    if kind == "ours":
        net = torch.compile(model, backend="tightfit", options={"budget": int(value), "optimizer": optimizer})
    losses = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(net)
        value.backward()
        optimizer.step()
        return value

    began = time.monotonic()
    losses.append(step().item())
    first = time.monotonic() - began
    for _ in range(5):
        losses.append(step().item())
    settled = time.monotonic() - began
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # What is timed is alone on the GPU.
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    runs = []
    for _ in range(5):
        times = []
        for _ in range(8):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            step()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        runs.append(statistics.median(times))
    return {
        "model": name, "batch": MODELS[name], "way": kind, "asked": float(value) if value else None, "time_ms": round(min(runs), 2),
        "peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
        "first_step_s": round(first, 1), "settled_s": round(settled, 1), "losses": losses,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="resnet50,convnext,gpt2")
    parser.add_argument("--shares", default="0.5,0.2,0")
    parser.add_argument("--beside", type=int, default=6, help="cells that compile side by side")
    parser.add_argument("--seconds", type=float, default=420, help="after which no cell is begun")
    parser.add_argument("--whole", action="store_true", help="ours in the bytes of plain torch.compile, too")
    parser.add_argument("--cell", help="one cell, in this process: MODEL:WAY")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.cell:
        name, _, way = given.cell.partition(":")
        print("CELL " + json.dumps(cell(name, way, folder_of(given.out, name, way))), flush=True)
        return
    began = time.monotonic()
    table = given.out / "compiled.jsonl"
    waiting = [(name, way) for name in given.models.split(",") for way in ("compile", *(f"b={share}" for share in given.shares.split(",")), "eager")]
    while waiting and time.monotonic() - began < given.seconds:
        cells = [start(*one, given.out) for one in waiting[: given.beside]]
        del waiting[: given.beside]
        while any(process.poll() is None and not (folder / "ready").exists() for _, _, process, folder in cells):
            time.sleep(0.1)
        more = []
        for name, way, process, folder in cells:
            (folder / "go").touch()
            process.wait()
            found = read(name, way, process, folder)
            with table.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps({key: value for key, value in found.items() if key != "losses"}), flush=True)
            if "time_ms" in found and (way.startswith("b=") or given.whole and way == "compile"):
                more.append((name, f"ours={int(found['peak_bytes'] * 1.02)}"))
        waiting[:0] = more


def folder_of(out, name, way):
    return out / "cells" / f"{name}-{way.replace('=', '-')}"


def start(name, way, out):
    folder = folder_of(out, name, way)
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("ready", "go"):
        (folder / old).unlink(missing_ok=True)
    environment = {
        **os.environ, "TORCHINDUCTOR_CACHE_DIR": f"/tmp/inductor-{folder.name}", "TRITON_CACHE_DIR": f"/tmp/triton-{folder.name}",
        "TIGHTFIT_CACHE": str(folder / "cache.db"), "TORCHINDUCTOR_COMPILE_THREADS": "4",
    }  # fmt: skip
    command = [sys.executable, __file__, "--out", str(out), "--cell", f"{name}:{way}"]
    with (folder / "log").open("w") as log:
        return name, way, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment), folder


def read(name, way, process, folder):
    """What a cell printed, as a line."""
    lines = (folder / "log").read_text().splitlines()
    kind, _, value = way.partition("=")
    found = next((json.loads(line[5:]) for line in lines if line.startswith("CELL ")), None)
    if found is None:
        found = {"model": name, "batch": MODELS[name], "way": kind, "asked": float(value) if value else None, "failed": process.returncode, "end": lines[-6:]}
    return {**found, "said": [line for line in lines if line.startswith("tightfit:")]}


if __name__ == "__main__":
    main()
