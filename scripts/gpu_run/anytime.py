#!/usr/bin/env python3
"""Training steps from the first on, while `tightfit run` tunes and afterwards: one JSON line for each NETWORK:BATCH:PRECISION[:SIZE].

usage: [tightfit run .. --] python scripts/gpu_run/anytime.py --label NAME [--seconds N] [--steps N] CASE
       [tightfit run .. --] torchrun --nproc-per-node 2 scripts/gpu_run/anytime.py --label NAME CASE

Takes steps for a number of seconds. Under `tightfit run --report FILE`, it stops at the latest two seconds after a report in which all kernels are
decided: tuning has ended then. A plain run stops when no step was held up. Then some more steps are timed. There is one case per process, because
tuned kernels stay tuned. Under torchrun, ranks train together (DistributedDataParallel), all take the number of steps of the first rank, and that one
writes.
"""

import argparse
import json
import os
import pathlib
import statistics
import time

import torch
from measure import Peak, milliseconds, tell
from models import build, loss_of

# A step that takes this number of times the shortest was held up.
HELD_UP = 1.25
# Seconds of steps behind the end of tuning that are not timed.
SETTLING = 2


def is_tuned(report):
    """Whether the report of this process has convolutions, all of them decided, for two seconds now."""
    if report is None or not report.exists() or report.stat().st_mtime > time.time() - SETTLING:
        return False
    found = json.loads(report.read_text())
    return bool(found["kernels"]) and found["totals"].get("undecided") == 0


def measure(case, options):
    network, batch, precision, *size = case.split(":")
    model, x, target = build(network, int(batch), precision, size=int(size[0]) if size else None)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    solver = torch.optim.SGD(model.parameters(), lr=0.0)

    # None without `tightfit run --report`.
    path = os.environ.get("TIGHTFIT_REPORT")
    report = pathlib.Path(path.replace("%p", str(os.getpid()))) if path else None

    def is_over(begin, times):
        spent = time.perf_counter() - begin
        # Where all steps are held up alike, only the report shows it.
        is_quiet = report is None and max(times[len(times) // 2 :], default=0.0) < HELD_UP * min(times, default=0.0)
        over = torch.tensor(float(spent >= options.seconds or spent >= options.least and (is_quiet or is_tuned(report))), device="cuda")
        if ranks > 1:
            torch.distributed.broadcast(over, 0)
        return bool(over)

    def step():
        solver.zero_grad(set_to_none=True)
        loss_of(model, x, target).backward()
        solver.step()

    def timed():
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    with Peak() as tuning:
        first, times, begin = timed(), [], time.perf_counter()
        while not is_over(begin, times):
            times.append(timed())
    figures = {f"tuning_{name}": value for name, value in tuning.gib().items()}
    # Apart from the peak, whose thread would take turns with this one.
    figures["step_ms"] = milliseconds(step, options.steps)
    with Peak() as peak:
        milliseconds(step, 2)
    figures.update(peak.gib())
    figures.update(steps=len(times), longest_step_ms=1e3 * max(times))
    # When the last step ran that took a tenth longer than those at the end.
    late = statistics.median(times[-10:])
    slow = [place for place, taken in enumerate(times) if taken > 1.1 * late + 5e-3]
    figures["settled_s"] = sum(times[: slow[-1] + 1]) if slow else 0.0
    if int(os.environ.get("RANK", 0)) == 0:
        tell(label=options.label, case=case, benchmark=options.benchmark, ranks=ranks, first_step_s=first, **figures)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--label", default="plain")
    parser.add_argument("--benchmark", action="store_true")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--least", type=float, default=4)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = options.benchmark
    if "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
    try:
        measure(options.case, options)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        tell(label=options.label, case=options.case, benchmark=options.benchmark, error=str(error).splitlines()[0][:200])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
