#!/usr/bin/env python3
"""Compiled training steps within a byte budget, compared with PyTorch's own knob, on the GPUs of one host; a JSON line for each cell.

    python3 scripts/gpu-compiled.py --out OUTPUT [--models resnet50,convnext,gpt2] [--ways b=0.5,b=0.2,compile,eager] [--seconds 420]

The models are in `gpu_run/compiled_models.py`. Ways:

    eager, compile    without a budget
    b=0.5             `torch.compile` with this `activation_memory_budget`; then `backend="tightfit"` in the bytes that it took plus 2%
    ours=BYTES        `backend="tightfit"` in these bytes, or in a share (ours=60%) of the predicted need of PyTorch's own division
    least=0.8         the same in a share of the activations at the least peak of PyTorch's in `--known`; weights, gradients, the optimizer's state and
                      the loss come on top
    offload=B         `torch.compile` with this `activation_memory_budget` and PyTorch's own offloading of every saved value
    losses            100 steps, five times by plain compile, and twice within 60% of its bytes. Each time compiles and tunes again. For the small
                      models, with `--beside 1 --threads 16`
    sweep             predicted peaks and times, from 100% of the need to the least in steps of 5%
    WAY+warm          one step of a second process with the folders of WAY

Each cell is a separate process with separate folders for compiled code. Several cells compile at once, so first steps take longer than alone;
`--beside 1` avoids that. A cell is timed while the other processes of its GPU are stopped. A run resumes: cells that are in OUTPUT are left out.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu_run"))
import offloaded
from compiled_models import BATCH, build

# The most seconds until a cell is ready to be timed.
MOST = 400
# The repeats of plain compile whose losses are compared, ours, and the steps of each.
REPEATS, OURS, STEPS = 5, 2, 100
# The step from which on peaks count.
SETTLED = 5
SHARE = 0.6
# Budgets that are tried, from a small one on.
TRIES = 3


class Trained:
    """A model and its optimizer in this process, with peaks of memory."""

    def __init__(self, name, tiny):
        import torch

        self.torch = torch
        self.device = "cpu" if tiny else "cuda"
        torch.manual_seed(0)
        self.model, self.loss, self.batch = build(name, self.device, tiny)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tiny = tiny

    def compiled(self):
        """The model compiled without a budget."""
        return self.torch.compile(self.model, backend="aot_eager_decomp_partition" if self.tiny else "inductor")

    def within(self, budget):
        """The model compiled within a budget."""
        options = {"budget": budget, "optimizer": self.optimizer, "inner": "eager" if self.tiny else "inductor"}
        return self.torch.compile(self.model, backend="tightfit", options=options)

    def first_that_fits(self, budgets):
        """The first budget that is not refused, or a little more than the least one, and the model within it, after a step."""
        from tightfit._budget.compiled.backend import misfit_in

        for budget in budgets:
            self.torch._dynamo.reset()
            net = self.within(budget)
            try:
                self.step(net)
                return budget, net
            except Exception as error:
                misfit = misfit_in(error)
                if misfit is None:
                    raise
                # The bytes of the least division are known once it is compiled.
                if len(budgets) < TRIES:
                    budgets.append(int(misfit.needed_bytes * 1.05))
        raise SystemExit(f"refused in {budgets}")

    def step(self, net):
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.autocast(self.device, self.torch.bfloat16, enabled=not self.tiny):
            value = self.loss(net)
        value.backward()
        self.optimizer.step()
        return value

    def peak(self, kind="allocated"):
        return 0 if self.tiny else getattr(self.torch.cuda, f"max_memory_{kind}")()

    def reset_peak(self):
        if not self.tiny:
            self.torch.cuda.synchronize()
            self.torch.cuda.reset_peak_memory_stats()

    def run(self, net, steps):
        """The milliseconds of each step."""
        times = []
        for _ in range(steps):
            if self.tiny:
                began = time.perf_counter()
                self.step(net)
                times.append(1e3 * (time.perf_counter() - began))
                continue
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.step(net)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return times


def cell(name, way, folder, given):
    """One cell, in this process."""
    began, tiny, more = time.monotonic(), given.tiny, {}
    kind, value = parts_of(way)
    trained = Trained(name, tiny)
    model, torch = trained.model, trained.torch
    told = {"model": name, "batch": trained.batch, "way": kind, "asked": value}
    if kind in ("losses", "sweep"):
        found = losses_of(trained) if kind == "losses" else sweep_of(trained)
        return {**told, "first_step_s": round(time.monotonic() - began, 1), **found}
    net = model
    if kind in ("b", "offload"):
        torch._functorch.config.activation_memory_budget = value
    if kind == "offload":
        offloaded.offload_all()
    if kind in ("b", "compile", "offload"):
        net = trained.compiled()
    if kind == "least":
        beside = offloaded.bytes_beside(model, trained.loss)
        value = int(beside + value * (given.least - beside))
        more = {"budget": value, "least_bytes": given.least, "beside_bytes": beside}
    if kind in ("ours", "least"):
        net = trained.within(value if isinstance(value, str) else int(value))
    losses = []
    trained.reset_peak()
    began = time.monotonic()
    losses.append(trained.step(net).item())
    first = time.monotonic() - began
    told["first_step_s"] = round(first, 2)
    if way.endswith("+warm"):
        from torch._dynamo.utils import compilation_time_metrics, counters

        # PyTorch's own names of its phases, which contain one another.
        phases = {name: round(sum(seconds), 2) for name, seconds in compilation_time_metrics.items() if sum(seconds) > 0.05}
        hits = counters["aot_autograd"]["autograd_cache_hit"]
        return {**told, "warm": True, "hits": hits, "phases_s": phases, "losses": losses, "peak_bytes": trained.peak()}
    for _ in range(5):
        losses.append(trained.step(net).item())
    settled = time.monotonic() - began
    first_peak = trained.peak()
    if not tiny:
        torch.cuda.empty_cache()
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    trained.run(net, 3)
    trained.reset_peak()
    runs = [statistics.median(trained.run(net, 8)) for _ in range(5)]
    peak, reserved = trained.peak(), trained.peak("reserved")
    if kind in ("ours", "least") and not tiny:
        more |= offloaded.planned()
    if given.trace and kind in ("ours", "least", "offload"):
        more["copies"] = offloaded.traced(lambda: trained.step(net), folder)
    return {
        **told, **more, "time_ms": round(min(runs), 2), "median_ms": round(statistics.median(runs), 2), "first_peak_bytes": first_peak,
        "peak_bytes": peak, "reserved_bytes": reserved, "settled_s": round(settled, 1), "losses": losses,
    }  # fmt: skip


def losses_of(trained):
    """Losses of the same steps, by plain compile and within a budget. Each run compiles again: other tuned kernels may add in another order.

    ``among`` is the largest difference between two repeats of plain compile in a step, ``ours`` the largest difference between ours and the repeat
    nearest to it, ``ours_any`` between ours and any repeat, ``ample`` as ``ours`` where nothing is given up, and ``knob`` as ``ours`` for
    PyTorch's own knob at 0.5.
    """
    from torch._inductor.utils import fresh_cache

    torch, model = trained.torch, trained.model
    first = {name: value.clone() for name, value in model.state_dict().items()}

    def train(net):
        model.load_state_dict(first)
        trained.optimizer.state.clear()
        losses = []
        for step in range(STEPS):
            if step == SETTLED:
                # Compiling and tuning also take memory.
                trained.reset_peak()
            torch.manual_seed(step)
            losses.append(trained.step(net).detach())
        return [value.item() for value in losses]

    def largest(runs):
        return max(min(abs(a - b) for b in theirs) for one in runs for a, *theirs in zip(one, *repeats, strict=True))

    def train_anew(compiled):
        torch._dynamo.reset()
        with fresh_cache():
            return train(compiled())

    repeats = [train_anew(trained.compiled) for _ in range(REPEATS)]
    plain = trained.peak()
    ample = train_anew(lambda: trained.within(4 * plain or "1GiB"))
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        knob = train_anew(trained.compiled)
    # The first steps may be compiled once more, with their measured peak.
    budget, net = trained.first_that_fits([int(SHARE * plain) or "60%"])
    train(net)
    ours, peaks = [], []
    for _ in range(OURS):
        ours.append(train_anew(lambda: trained.within(budget)))
        peaks.append(trained.peak())
    among = max(abs(a - b) for one, other in itertools.combinations(repeats, 2) for a, b in zip(one, other, strict=True))
    any_of = max(abs(a - b) for one in ours for a, *theirs in zip(one, *repeats, strict=True) for b in theirs)
    return {
        "plain_peak_bytes": plain, "budget": budget, "peak_bytes": max(peaks), "among": among, "ours": largest(ours), "ours_any": any_of,
        "ample": largest([ample]), "knob": largest([knob]), "repeats": repeats, "of_ours": ours,
    }  # fmt: skip


def sweep_of(trained):
    """Predicted peaks and times for budgets from 100% of the need to the least, in steps of 5%. ``rise`` is by how much more bytes took more time."""
    from tightfit._budget.compiled.held import all_held

    # The smaller the budget, the more of PyTorch's divisions are candidates.
    trained.first_that_fits(["60%"])
    plan = [graph.plan for held in all_held() for graph in held.graphs.values()][-1]
    chooser, outside = plan.chooser, plan.terms.outside
    need = outside + chooser.peak(chooser.plain)
    points = []
    for percent in range(100, 0, -5):
        found = chooser.fitting(need * percent // 100 - outside)
        if found is None:
            break
        peak, time_us = outside + chooser.peak(found.division), found.division.time_us - chooser.plain.time_us
        points.append({"percent": percent, "peak_bytes": peak, "more_us": round(time_us), "of": found.of})
    least = outside + chooser.peak(chooser.least().division)
    rise = max((more["more_us"] - less["more_us"] for more, less in itertools.pairwise(points)), default=0)
    return {"need_bytes": need, "least_bytes": least, "rise_us": rise, "points": points}


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
    parser.add_argument("--trace", action="store_true", help="profile a step of cells that may offload")
    parser.add_argument("--least", type=int, default=0, help="with --cell: PyTorch's least peak in bytes")
    parser.add_argument("--cell", help="one cell, in this process: MODEL:WAY")
    parser.add_argument("--tiny", action="store_true", help="small models on the CPU, whose planned graphs run eagerly")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.cell:
        name, _, way = given.cell.partition(":")
        print("CELL " + json.dumps(cell(name, way, folder_of(given.out, name, way), given)), flush=True)
        return
    began = time.monotonic()
    table = given.out / "compiled.jsonl"
    lines = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    there = {(line["model"], way_of(line)) for line in lines if "first_step_s" in line}
    known = [json.loads(line) for line in given.known.read_text().splitlines()] if given.known else []
    asked = {(line["model"], way_of(line)): line["peak_bytes"] for line in known + lines if line.get("way") == "b" and "peak_bytes" in line}
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
                given.least = min((peak for (name, _), peak in asked.items() if name == one[0]), default=0)
                running.append(Cell(*one, given, free()))
        for one in running:
            if timed[one.gpu] is None and one.is_ready and one.process.poll() is None:
                timed[one.gpu] = one
                one.stop([other for other in running if other.gpu == one.gpu])
        for one in list(running):
            now = time.monotonic()
            late = now - one.began > MOST * (10 if given.tiny else 1) or one.timing and now - one.timing > 60 or spent > given.end
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
            print(json.dumps({key: value for key, value in found.items() if key not in ("losses", "repeats", "of_ours")}), flush=True)
            if "time_ms" in found and one.way.startswith("b=") and one.cell not in asked:
                waiting.insert(0, (one.name, f"ours={int(found['peak_bytes'] * 1.02)}"))
        time.sleep(0.1)


class Cell:
    """The process of one cell."""

    def __init__(self, name, way, given, gpu):
        out, threads = given.out, given.threads
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
            "CUDA_VISIBLE_DEVICES": str(gpu), "TIGHTFIT_VERBOSE": "1",
        }  # fmt: skip
        command = [sys.executable, __file__, "--out", str(out), "--cell", f"{name}:{way}", "--least", str(given.least)]
        command += [option for option, is_on in (("--tiny", given.tiny), ("--trace", given.trace)) if is_on]
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
            found = {"model": self.name, "batch": BATCH[self.name], "way": kind, "asked": value, "failed": self.process.returncode, "end": lines[-8:]}
        return {**found, "said": [line for line in lines if line.startswith("tightfit:")]}


def end(process):
    """Ends a cell with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def way_of(line):
    asked = line["asked"]
    value = "" if asked is None else f"={asked}" if isinstance(asked, str) else f"={asked:g}" if line["way"] in ("b", "least", "offload") else f"={int(asked)}"
    return line["way"] + value + ("+warm" if line.get("warm") else "")


def parts_of(way):
    kind, _, value = way.removesuffix("+warm").partition("=")
    return kind, value if value.endswith("%") else float(value) if value else None


def folder_of(out, name, way):
    return out / "cells" / f"{name}-{way.replace('=', '-')}"


if __name__ == "__main__":
    main()
