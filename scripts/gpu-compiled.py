#!/usr/bin/env python3
"""Compiled training steps within a byte budget, compared with PyTorch's own knob, on one GPU; a JSON line for each cell.

    python3 scripts/gpu-compiled.py --out OUTPUT [--models resnet50,convnext,gpt2] [--ways b=0.5,b=0.2,compile,eager] [--seconds 420]

For each model: `eager`; `compile`; `torch.compile` with `activation_memory_budget` b; and `backend="tightfit"` in the bytes of the latter plus 2%.
Each cell is a separate process with separate folders for compiled code. Several cells compile side by side, so first steps take longer than alone.
Steps are timed one cell after the other, while the other processes are stopped. A run resumes: cells that are in OUTPUT are left out.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

MODELS = {
    "resnet50": 256, "convnext": 128, "gpt2": 8, "vit_l": 128, "efficientnet": 128, "unet3d": 2, "sd_unet": 8, "sd_vae": 4, "swin": 128, "regnet": 128,
    "densenet": 64, "mixer": 128, "bert": 32,
}  # fmt: skip
# By name: torchvision's or timm's.
VISION = {
    "resnet50": "resnet50", "convnext": "convnext_base", "vit_l": "vit_l_16", "efficientnet": "efficientnet_v2_s", "swin": "swin_t",
    "regnet": "regnet_y_3_2gf", "densenet": "densenet121",
}  # fmt: skip
TIMM = {"mixer": "mixer_b16_224"}
# The most seconds until a cell is ready to be timed.
MOST = 240


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
    elif name == "unet3d":
        sys.path.insert(0, str(Path("scripts/gpu_run").resolve()))
        from models import UNet3d

        model = UNet3d().cuda()
        x, y = torch.randn(batch, 1, 128, 128, 128, device="cuda"), torch.randint(0, 2, (batch, 128, 128, 128), device="cuda")

        def loss(net):
            return nn.functional.cross_entropy(net(x), y)
    elif name == "bert":
        from transformers import BertConfig, BertForMaskedLM

        model = BertForMaskedLM(BertConfig()).cuda()
        x, y = (torch.randint(0, 30522, (batch, 512), device="cuda") for _ in range(2))

        def loss(net):
            return net(input_ids=x, labels=y).loss
    else:
        if name in TIMM:
            import timm

            model = timm.create_model(TIMM[name])
        else:
            import torchvision

            model = getattr(torchvision.models, VISION[name])()
        model = model.cuda().to(memory_format=torch.channels_last)
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
    parser.add_argument("--ways", default="b=0.5,b=0.2,b=0,compile,eager", help="in this order, each for all models; or ours=BYTES")
    parser.add_argument("--beside", type=int, default=8, help="cells that compile side by side")
    parser.add_argument("--seconds", type=float, default=420, help="after which no cell is begun")
    parser.add_argument("--end", type=float, default=470, help="seconds after which cells are ended")
    parser.add_argument("--known", type=Path, help="lines of an earlier run: ours is asked for the bytes in them, without waiting for PyTorch's")
    parser.add_argument("--only-ours", action="store_true", help="with --known: PyTorch's cells are not run again")
    parser.add_argument("--cell", help="one cell, in this process: MODEL:WAY")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.cell:
        name, _, way = given.cell.partition(":")
        print("CELL " + json.dumps(cell(name, way, folder_of(given.out, name, way))), flush=True)
        return
    began = time.monotonic()
    table = given.out / "compiled.jsonl"
    lines = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    there = {(line["model"], way_of(line)) for line in lines if "time_ms" in line}
    known = [json.loads(line) for line in given.known.read_text().splitlines()] if given.known else []
    asked = {(line["model"], way_of(line)): line["peak_bytes"] for line in known if line.get("way") == "b" and "peak_bytes" in line}
    waiting = []
    for way in given.ways.split(","):
        for name in given.models.split(","):
            if not given.only_ours:
                waiting.append((name, way))
            if (name, way) in asked:
                waiting.append((name, f"ours={int(asked[name, way] * 1.02)}"))
    waiting = [one for one in waiting if one not in there]
    running = []
    while waiting or running:
        spent = time.monotonic() - began
        while waiting and len(running) < given.beside and spent < given.seconds:
            running.append(start(*waiting.pop(0), given.out))
        if spent > given.seconds:
            waiting.clear()
        for one in list(running):
            name, way, process, folder, started = one
            is_ready = (folder / "ready").exists()
            if process.poll() is None and not is_ready and time.monotonic() - started < MOST and spent < given.end:
                continue
            running.remove(one)
            if process.poll() is None and is_ready:
                finish(process, folder, [other[2] for other in running])
            end(process)
            found = read(name, way, process, folder)
            with table.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps({key: value for key, value in found.items() if key != "losses"}), flush=True)
            if "time_ms" in found and way.startswith("b=") and (name, way) not in asked:
                waiting.insert(0, (name, f"ours={int(found['peak_bytes'] * 1.02)}"))
        time.sleep(0.1)


def finish(process, folder, others):
    """Times a cell while the other processes are stopped."""
    for other in others:
        os.killpg(other.pid, signal.SIGSTOP)
    time.sleep(0.3)
    (folder / "go").touch()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        pass
    for other in others:
        os.killpg(other.pid, signal.SIGCONT)


def end(process):
    """Ends a cell with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def way_of(line):
    return line["way"] if line["asked"] is None else f"{line['way']}={line['asked']:g}" if line["way"] == "b" else f"{line['way']}={int(line['asked'])}"


def folder_of(out, name, way):
    return out / "cells" / f"{name}-{way.replace('=', '-')}"


def start(name, way, out):
    folder = folder_of(out, name, way)
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("ready", "go"):
        (folder / old).unlink(missing_ok=True)
    environment = {
        **os.environ, "TORCHINDUCTOR_CACHE_DIR": f"/tmp/inductor-{folder.name}", "TRITON_CACHE_DIR": f"/tmp/triton-{folder.name}",
        "TIGHTFIT_CACHE": str(folder / "cache.db"), "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2",
    }  # fmt: skip
    command = [sys.executable, __file__, "--out", str(out), "--cell", f"{name}:{way}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    return name, way, process, folder, time.monotonic()


def read(name, way, process, folder):
    """The line that a cell printed."""
    lines = (folder / "log").read_text().splitlines()
    kind, _, value = way.partition("=")
    found = next((json.loads(line[5:]) for line in lines if line.startswith("CELL ")), None)
    if found is None:
        found = {"model": name, "batch": MODELS[name], "way": kind, "asked": float(value) if value else None, "failed": process.returncode, "end": lines[-8:]}
    return {**found, "said": [line for line in lines if line.startswith("tightfit:")]}


if __name__ == "__main__":
    main()
