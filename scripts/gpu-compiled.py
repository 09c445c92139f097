#!/usr/bin/env python3
"""Compiled training steps within a byte budget, compared with PyTorch's own knob, on the GPUs of one host; a JSON line for each cell.

    python3 scripts/gpu-compiled.py --out OUTPUT [--models resnet50,convnext,gpt2] [--ways b=0.5,b=0.2,compile,eager] [--seconds 420]

For each model: `eager`; `compile`; `torch.compile` with `activation_memory_budget` b; and `backend="tightfit"` in the bytes of the latter plus 2%.
Each cell is a separate process with separate folders for compiled code. `WAY+warm` is one step of a second process with the folders of WAY. Several
cells compile side by side, so first steps take longer than alone. A cell is timed while the other processes of its GPU are stopped. A run resumes:
cells that are in OUTPUT are left out.

`least=SHARE` is `backend="tightfit"` in a share of the activations at PyTorch's least peak in `--known`; weights, gradients, the optimizer's state and
the loss come on top. `offload=B` is `activation_memory_budget` B with PyTorch's own offloading of every saved value. `graphs` is
`mode="reduce-overhead"`, and `graphs=BYTES` the same within a budget. With `--trace`, one step of each `least` and `offload` cell is profiled: a Perfetto
timeline, and the share of the time of its copies in which kernels run.
"""

import argparse
import gzip
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


def bytes_beside(model, loss):
    """Bytes of weights, gradients, AdamW's state, inputs and the loss."""
    import torch
    from torch.utils._pytree import tree_map

    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    there = torch.cuda.memory_allocated() + 3 * weights
    found = []

    def forward(*args, **kwargs):
        with torch.no_grad():
            found.append(model(*args, **kwargs))
        return found[-1]

    def again(*args, **kwargs):
        return tree_map(lambda one: one.detach().requires_grad_() if isinstance(one, torch.Tensor) and one.is_floating_point() else one, found[0])

    with torch.autocast("cuda", torch.bfloat16):
        loss(forward)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss(again).backward()
    beside = torch.cuda.max_memory_allocated() - before
    found.clear()
    torch.cuda.empty_cache()
    return there + beside


def offload_all():
    """PyTorch's own offloading of every saved value of at least 1 MiB, on a separate stream, with prefetching."""
    import torch
    from torch._functorch import config, partitioners

    config.enable_activation_offloading = config.activation_offload_separate_stream = True
    config.activation_offload_sink_wait = config.activation_reload_prefetch = True
    own = partitioners.choose_saved_values_set

    def choose(joint, *args, **kwargs):
        for node in joint.nodes:
            value = node.meta.get("val")
            if node.op == "call_function" and isinstance(value, torch.Tensor) and value.numel() * value.element_size() >= 1 << 20:
                node.meta["should_offload"] = True
        return own(joint, *args, **kwargs)

    partitioners.choose_saved_values_set = choose


def traced(step, folder):
    """Profiles a step: a timeline in the folder, and the share of the time of its copies in which kernels run."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    path = folder / "timeline.json.gz"
    profiler.export_chrome_trace(str(path))
    with gzip.open(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if "dur" in event]
    kernels = union((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "kernel")
    found = {}
    for way in ("HtoD", "DtoH"):
        copies = union((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "gpu_memcpy" and way in event["name"])
        spent = sum(end - start for start, end in copies)
        beside = sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in copies for begin, stop in kernels)
        found[way] = {"us": round(spent), "beside_kernels": round(beside / spent, 4) if spent else None}
    return found


def union(spans):
    """Spans without overlaps, in order."""
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def planned_bytes():
    """The bytes that the plans offload, with the rates of the link in bytes per microsecond."""
    from tightfit._budget.compiled.held import all_held

    plans = [planned for held in all_held() for planned in held.planned]
    links = [held.kernels.link for held in all_held()]
    return {
        "moved_bytes": sum(sum(planned.moved.values()) for planned in plans), "predicted_peak_bytes": max((planned.peak for planned in plans), default=0),
        "predicted_us": sum(planned.overhead_us for planned in plans), "link": [[link.out, link.into] for link in links],
    }  # fmt: skip


def cell(name, way, folder, least=0, trace=False):
    """One cell, in this process."""
    import torch

    torch.manual_seed(0)
    model, loss = build(name, MODELS[name])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    net = model
    kind, value = parts_of(way)
    extra = {}
    if kind in ("b", "offload"):
        torch._functorch.config.activation_memory_budget = value
    if kind == "offload":
        offload_all()
    if kind in ("b", "compile", "offload"):
        net = torch.compile(model)
    if kind == "graphs":
        net = torch.compile(model, mode="reduce-overhead")
    if kind == "least":
        base = bytes_beside(model, loss)
        extra = {"share": value, "least_bytes": least, "beside_bytes": base}
        value = int(base + value * (least - base))
    if kind in ("ours", "least") or kind == "graphs" and value:
        options = {"budget": int(value), "optimizer": optimizer, **({"mode": "reduce-overhead"} if kind == "graphs" else {})}
        net = torch.compile(model, backend="tightfit", options=options)
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
    told = {"model": name, "batch": MODELS[name], "way": kind, "asked": value, "first_step_s": round(first, 1)}
    if way.endswith("+warm"):
        return {**told, "warm": True, "losses": losses, "peak_bytes": torch.cuda.max_memory_allocated()}
    for _ in range(5):
        losses.append(step().item())
    settled = time.monotonic() - began
    torch.cuda.synchronize()
    first_peak = torch.cuda.max_memory_allocated()
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
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    if kind in ("ours", "least", "graphs"):
        extra |= planned_bytes()
    if trace and kind in ("least", "offload", "ours"):
        extra["copies"] = traced(step, folder)
    return {
        **told, **extra, "time_ms": round(min(runs), 2), "median_ms": round(statistics.median(runs), 2), "first_peak_bytes": first_peak,
        "peak_bytes": peak, "reserved_bytes": reserved, "settled_s": round(settled, 1),
        "losses": losses,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="resnet50,convnext,gpt2")
    parser.add_argument("--ways", default="b=0.5,b=0.2,b=0,compile,eager", help="in this order, each for all models; or ours=BYTES")
    parser.add_argument("--cells", help="MODEL:WAY,.. instead of --models and --ways")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--beside", type=int, default=8, help="cells that compile side by side")
    parser.add_argument("--threads", type=int, default=2, help="threads that compile kernels, for each cell")
    parser.add_argument("--seconds", type=float, default=420, help="after which no cell is begun")
    parser.add_argument("--end", type=float, default=470, help="seconds after which cells are ended")
    parser.add_argument("--known", type=Path, help="lines of an earlier run: ours is asked for the bytes in them, without waiting for PyTorch's")
    parser.add_argument("--only-ours", action="store_true", help="with --known: PyTorch's cells are not run again")
    parser.add_argument("--trace", action="store_true", help="profile a step of cells that offload")
    parser.add_argument("--least", type=int, default=0, help="with --cell: PyTorch's least peak in bytes")
    parser.add_argument("--cell", help="one cell, in this process: MODEL:WAY")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.cell:
        name, _, way = given.cell.partition(":")
        print("CELL " + json.dumps(cell(name, way, folder_of(given.out, name, way), given.least, given.trace)), flush=True)
        return
    began = time.monotonic()
    table = given.out / "compiled.jsonl"
    lines = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    there = {(line["model"], way_of(line)) for line in lines if "first_step_s" in line}
    known = [json.loads(line) for line in given.known.read_text().splitlines()] if given.known else []
    least = {}
    for line in (*known, *lines):
        if line.get("way") == "b" and "peak_bytes" in line:
            least[line["model"]] = min(least.get(line["model"], line["peak_bytes"]), line["peak_bytes"])
    asked = {(line["model"], way_of(line)): line["peak_bytes"] for line in known if line.get("way") == "b" and "peak_bytes" in line}
    waiting = []
    for way in given.ways.split(","):
        for name in given.models.split(","):
            if not given.only_ours:
                waiting.append((name, way))
            if (name, way) in asked:
                waiting.append((name, f"ours={int(asked[name, way] * 1.02)}"))
    if given.cells:
        waiting = [tuple(one.split(":")) for one in given.cells.split(",")]
    waiting = [one for one in waiting if one not in there]
    running = []
    timed = dict.fromkeys(range(given.gpus))

    def free():
        return min(timed, key=lambda gpu: sum(one.gpu == gpu for one in running))

    while waiting or running:
        spent = time.monotonic() - began
        if spent > given.seconds:
            waiting.clear()
        for one in list(waiting):
            # A second process starts when the first one has ended.
            if len(running) < given.beside and not any(other.cell == (one[0], one[1].removesuffix("+warm")) for other in running):
                waiting.remove(one)
                more = ["--least", str(least.get(one[0], 0)), *(["--trace"] if given.trace else [])]
                running.append(Cell(*one, given.out, free(), given.threads, more))
        for one in running:
            if timed[one.gpu] is None and one.is_ready and one.process.poll() is None:
                timed[one.gpu] = one
                one.stop([other for other in running if other.gpu == one.gpu])
        for one in list(running):
            now = time.monotonic()
            late = now - one.began > MOST or one.timing and now - one.timing > 60 or spent > given.end
            if one.process.poll() is None and not late:
                continue
            running.remove(one)
            end(one.process)
            if timed[one.gpu] is one:
                timed[one.gpu] = None
                for other in running:
                    if other.gpu == one.gpu:
                        other.signal(signal.SIGCONT)
            found = one.read()
            with table.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps({key: value for key, value in found.items() if key != "losses"}), flush=True)
            if "time_ms" in found and one.way.startswith("b=") and one.cell not in asked:
                waiting.insert(0, (one.name, f"ours={int(found['peak_bytes'] * 1.02)}"))
        time.sleep(0.1)


class Cell:
    """The process of one cell."""

    def __init__(self, name, way, out, gpu, threads, more):
        self.name, self.way, self.gpu = name, way, gpu
        self.cell = name, way
        self.began, self.timing = time.monotonic(), 0.0
        self.folder = folder_of(out, name, way)
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in ("ready", "go"):
            (self.folder / old).unlink(missing_ok=True)
        first = folder_of(out, name, way.removesuffix("+warm"))
        environment = {
            **os.environ, "TORCHINDUCTOR_CACHE_DIR": f"/tmp/inductor-{first.name}", "TRITON_CACHE_DIR": f"/tmp/triton-{first.name}",
            "TIGHTFIT_CACHE": str(first / "cache.db"), "TORCHINDUCTOR_COMPILE_THREADS": str(threads), "OMP_NUM_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": str(gpu),
        }  # fmt: skip
        command = [sys.executable, __file__, "--out", str(out), "--cell", f"{name}:{way}", *more]
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)

    @property
    def is_ready(self):
        return (self.folder / "ready").exists()

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def stop(self, others):
        """Stops the other processes of the GPU, and lets this one time its steps."""
        for other in others:
            if other is not self:
                other.signal(signal.SIGSTOP)
        time.sleep(0.2)
        self.timing = time.monotonic()
        (self.folder / "go").touch()

    def read(self):
        """The line that the cell printed."""
        lines = (self.folder / "log").read_text().splitlines()
        kind, value = parts_of(self.way)
        found = next((json.loads(line[5:]) for line in lines if line.startswith("CELL ")), None)
        if found is None:
            found = {"model": self.name, "batch": MODELS[self.name], "way": kind, "asked": value, "failed": self.process.returncode, "end": lines[-8:]}
        return {**found, "said": [line for line in lines if line.startswith("tightfit:")]}


def end(process):
    """Ends a cell with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def way_of(line):
    of = line.get("share", line["asked"])
    value = "" if of is None else f"={of:g}" if line["way"] in ("b", "least", "offload") else f"={int(of)}"
    return line["way"] + value + ("+warm" if line.get("warm") else "")


def parts_of(way):
    kind, _, value = way.removesuffix("+warm").partition("=")
    return kind, float(value) if value else None


def folder_of(out, name, way):
    return out / "cells" / f"{name}-{way.replace('=', '-')}"


if __name__ == "__main__":
    main()
