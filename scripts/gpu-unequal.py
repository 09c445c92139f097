#!/usr/bin/env python3
"""Trains ResNet-18 on GPUs of unequal speed, evenly and as tightfit plans it, and compares.

usage: scripts/gpu-unequal.py --out FOLDER [--devices 2] [--slow 1] [--share 0.4] [--batch 256] [--step 16] [--dry-run]

Needs that many GPUs, torch with NCCL, torchvision, and the tightfit package (`pip install ./crates/python`). The GPUs listed
by --slow compute on a --share of their multiprocessors (a green context), as a smaller GPU would. With --share 1 another
process multiplies matrices on each of them without pause instead; the script starts and stops it. Then, under torchrun:

    1. each rank measures training steps (forward, backward, SGD; no communication) of its GPU by batch size, and keeps
       them in a separate cache; rank 0 merges the caches into FOLDER/steps.db
    2. tightfit splits the mini-batch over all
    3. the ranks train, evenly and as planned, without and with batch norm over all ranks; the all-reduce of all gradients
       is timed on its own
    4. gradients of uneven batches, one of them 0 samples, are compared with one device's in fp64

The result is FOLDER/gpu-unequal.json, and is printed. It takes one to three minutes, and ends by itself after four.
--dry-run does all of it with a small network on CPU processes with gloo, of which the slow ones sleep.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

LIMIT_S = 225
SLOW_US = 1500


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT"), help="folder for the result [default: $OUT]")
    parser.add_argument("--batch", type=int, default=None, help="mini-batch [default: 256; 32 in a dry run]")
    parser.add_argument("--step", type=int, default=None, help="batches are multiples of this power of two [16; 4]")
    parser.add_argument("--devices", type=int, default=2, help="how many [default: %(default)s]")
    parser.add_argument("--slow", default="1", help="the slowed ones, from 0 on, commas between [default: %(default)s]")
    parser.add_argument("--share", type=float, default=0.4, help="of multiprocessors that slow ones use [default: %(default)s]")
    parser.add_argument("--loaded", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--load", type=int, default=4096, help="rows of the competing matrices")
    parser.add_argument("--steps", type=int, default=None, help="training steps timed [30; 5]")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--role", choices=["main", "load", "worker"], default="main", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out is None:
        parser.error("--out FOLDER is needed where OUT is not set")
    dry = options.dry_run
    options.batch = options.batch or (32 if dry else 256)
    options.step = options.step or (4 if dry else 16)
    options.steps = options.steps or (5 if dry else 30)
    options.out = Path(options.out)
    options.slowed = [int(place) for place in options.slow.split(",") if place]
    if not all(0 <= place < options.devices for place in options.slowed):
        parser.error(f"--slow {options.slow}: devices count from 0 to {options.devices - 1}")
    return options


def main(options):
    import torch

    import tightfit  # noqa: F401  (missing here is a clearer error than in a rank)

    if not options.dry_run and torch.cuda.device_count() < options.devices:
        sys.exit(f"{options.devices} GPUs are needed, {torch.cuda.device_count()} found; --dry-run works without")
    options.out.mkdir(parents=True, exist_ok=True)
    result = options.out / "gpu-unequal.json"
    result.unlink(missing_ok=True)
    again = [sys.executable, __file__, *sys.argv[1:], "--out", str(options.out)]
    loads = []
    try:
        for place in options.slowed if options.share == 1 and not options.dry_run else []:
            command = [*again, "--role", "load", "--loaded", str(place)]
            loads.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            if loads[-1].stdout.readline() != "loading\n":
                sys.exit("the competing load did not start; its message is above")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.devices)]
        # NVLink multicast needs a fabric manager, which containers often lack.
        environment = {"OMP_NUM_THREADS": "1", "NCCL_NVLS_ENABLE": "0", **os.environ}
        ranks = subprocess.Popen([*torchrun, *again[1:], "--role", "worker"], env=environment)
        try:
            code = ranks.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            # torchrun ends its ranks when it is asked to end.
            ranks.terminate()
            ranks.wait(timeout=15)
            sys.exit(f"not done within {LIMIT_S} s; what was measured is in {options.out}")
        if code != 0:
            what = f"; what was done before is in {result}" if result.exists() else ""
            sys.exit(f"the ranks failed with code {code}, their message is above{what}")
    finally:
        for load in loads:
            load.terminate()
            load.wait(timeout=15)
    print(result.read_text())


def load(options):
    """Keeps a GPU busy until it is terminated, or its parent is gone."""
    import torch

    parent, until = os.getppid(), time.monotonic() + LIMIT_S + 30
    torch.cuda.set_device(options.loaded)
    a = torch.randn(options.load, options.load, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)
    torch.mm(a, a, out=b)
    torch.cuda.synchronize()
    print("loading", flush=True)
    while os.getppid() == parent and time.monotonic() < until:
        # Two batches of work in flight, so that the GPU never waits for this process.
        done = torch.cuda.Event()
        for _ in range(20):
            torch.mm(a, a, out=b)
        done.record(torch.cuda.current_stream())
        for _ in range(20):
            torch.mm(a, a, out=b)
        done.synchronize()


class Rank:
    """One process of the training."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist

        import tightfit.torch as tt

        self.options, self.torch, self.dist, self.tt = options, torch, dist, tt
        local = tt.init_process_group(timeout=timedelta(seconds=90), **({"backend": "gloo"} if options.dry_run else {}))
        self.rank = dist.get_rank()
        self.device = torch.device("cpu") if options.dry_run else torch.device("cuda", local)
        self.types = "f32" if options.dry_run else "tf32"
        torch.set_num_threads(1 if options.dry_run else 8)
        if self.rank in options.slowed and options.share < 1 and not options.dry_run:
            self.slow_down(local)

    def slow_down(self, local):
        """Everything from here on computes on a share of the multiprocessors."""
        from torch.cuda.green_contexts import GreenContext

        count = self.torch.cuda.get_device_properties(local).multi_processor_count
        # The driver hands them out by eights.
        self.context = GreenContext.create(num_sms=round(count * self.options.share / 8) * 8, device_id=local)
        if hasattr(self.context, "Stream"):
            self.torch.cuda.set_stream(self.context.Stream())
        else:
            self.context.set_context()

    def network(self):
        torch = self.torch
        torch.manual_seed(0)
        if not self.options.dry_run:
            from torchvision.models import resnet18

            return resnet18().to(self.device)
        nn = torch.nn

        class Slow(nn.Module):
            def forward(_, x):
                time.sleep(len(x) * SLOW_US * 1e-6 * (2 if self.rank in self.options.slowed else 1))
                return x

        layers = [Slow(), nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)]
        network = nn.Sequential(*layers)
        network(torch.zeros(2, 3, self.size, self.size))
        return network

    @property
    def size(self):
        return 32 if self.options.dry_run else 224

    def data(self, samples):
        x = self.torch.randn(samples, 3, self.size, self.size, device=self.device)
        return x, self.torch.randint(10, (samples,), device=self.device)

    def time(self, model, samples, count, warm_up):
        """Microseconds of `count` training steps."""
        torch = self.torch
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        x, y = self.data(samples)
        wait = torch.cuda.synchronize if self.device.type == "cuda" else (lambda: None)
        times = []
        for step in range(warm_up + count):
            wait()
            start = time.perf_counter()
            optimizer.zero_grad()
            self.tt.backward(model, x, lambda out: torch.nn.functional.cross_entropy(out, y))
            optimizer.step()
            wait()
            if step >= warm_up:
                times.append((time.perf_counter() - start) * 1e6)
        return times

    def measure(self):
        """Steps of this device alone by batch: (batch, microseconds, bytes)."""
        torch, options = self.torch, self.options
        count = 3 if options.dry_run else 9
        model = self.network()
        steps = []
        for samples in range(options.step, options.batch + 1, options.step):
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            times = self.time(model, samples, count, warm_up=1 if options.dry_run else 3)
            memory = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
            steps.append((samples, statistics.median(times), memory))
        return steps

    def train(self, batches, sync):
        """Median step in microseconds, the slowest rank's."""
        torch, dist = self.torch, self.dist
        model = self.network()
        if sync:
            model = self.tt.sync_batch_norm(model)
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = self.tt.distribute(model, batches)
        times = self.time(model, batches[self.rank], self.options.steps, warm_up=2 if self.options.dry_run else 8)
        each = torch.tensor(times, device=self.device)
        dist.all_reduce(each, op=dist.ReduceOp.MAX)
        return float(each.median())

    def all_reduce(self):
        """Median microseconds of one all-reduce of as many bytes as the gradients have, with nothing else to do."""
        torch, dist = self.torch, self.dist
        gradients = torch.zeros(sum(p.numel() for p in self.network().parameters()), device=self.device)
        wait = torch.cuda.synchronize if self.device.type == "cuda" else (lambda: None)
        times = []
        for _ in range(self.options.steps):
            dist.barrier()
            wait()
            start = time.perf_counter()
            dist.all_reduce(gradients)
            wait()
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times[len(times) // 4 :])

    def compare_gradients(self):
        """Largest difference of a gradient from one device's, in fp64, relative to its largest element."""
        torch, dist, nn = self.torch, self.dist, self.torch.nn
        torch.manual_seed(1)
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 7)]
        start = nn.Sequential(*layers).double().state_dict()
        ranks = self.options.devices
        samples = 3 * ranks + 1
        x, y = torch.randn(samples, 3, 8, 8, dtype=torch.float64) + 3, torch.randint(7, (samples,))
        x, y = x.to(self.device), y.to(self.device)
        differences = {}
        # Nearly even; one rank with a single sample; one rank without any.
        for last in (3, 1, 0):
            batches = [3] * (ranks - 1) + [last]
            batches[0] = samples - sum(batches[1:])
            gradients = []
            for alone in (True, False):
                model = nn.Sequential(*layers).double()
                model.load_state_dict(start)
                model = model.to(self.device)
                model.zero_grad()
                if not alone:
                    model = self.tt.distribute(self.tt.sync_batch_norm(model), batches)
                first = 0 if alone else sum(batches[: self.rank])
                part = slice(first, first + (samples if alone else batches[self.rank]))
                self.tt.backward(model, x[part], lambda out: nn.functional.cross_entropy(out, y[part]))
                gradients.append([parameter.grad.clone() for parameter in model.parameters()])
            worst = max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-3)) for a, b in zip(*gradients))
            differences["+".join(map(str, batches))] = worst
        dist.barrier()
        return differences


def worker(options):
    import tightfit

    rank = Rank(options)
    torch, dist = rank.torch, rank.dist
    names = [f"rank {place}" for place in range(options.devices)]
    kind = "cpu" if options.dry_run else torch.cuda.get_device_name(rank.device)
    steps = rank.measure()
    own, cache = options.out / f"steps-{rank.rank}.db", options.out / "steps.db"
    library = f"torch {torch.__version__}"
    tightfit.record_steps(
        own, f"{kind} rank {rank.rank}", "resnet18", steps, library=library, types=rank.types, backend=rank.device.type
    )
    tightfit.merge(cache, own)
    dist.barrier()
    plan = tightfit.split(
        options.batch, names, network="resnet18", cache=cache, types=rank.types, multiple_of=options.step
    )
    result = {
        "device": kind,
        "torch": torch.__version__,
        "batch": options.batch,
        "network": "small" if options.dry_run else "torchvision resnet18, 224x224",
        "types": rank.types,
        "slowed": options.slowed,
        "share": options.share,
        "slowdown_beside_rank_0": [device.alone_time_us / plan.devices[0].alone_time_us for device in plan.devices],
        "all_reduce_us": rank.all_reduce(),
        "predicted": plan.to_dict(),
        "measured": {},
    }
    even = [device.even_batch for device in plan.devices]
    for sync in (False, True):
        even_us, planned_us = rank.train(even, sync), rank.train(plan.batches, sync)
        result["measured"]["sync-batch-norm" if sync else "batch-norm"] = {
            "even": even,
            "even_step_us": even_us,
            "planned": plan.batches,
            "planned_step_us": planned_us,
            "speedup": even_us / planned_us,
            "planned_over_predicted": planned_us / plan.time_us,
        }
        keep(result, rank)
    result["gradient_difference_fp64"] = rank.compare_gradients()
    keep(result, rank)
    dist.barrier()
    dist.destroy_process_group()


def keep(result, rank):
    if rank.rank == 0:
        (rank.options.out / "gpu-unequal.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    chosen = arguments()
    {"main": main, "load": load, "worker": worker}[chosen.role](chosen)
