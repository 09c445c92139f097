#!/usr/bin/env python3
"""Runs a program of PyTorch as it is, ends it after a number of updates of its weights, and writes their time and memory as a line of JSON.

usage: [tightfit run .. --] python scripts/gpu_run/watched.py OUTPUT STEPS PROGRAM.py ARGUMENT ..

`peak_bytes` is the most that torch's allocator had allocated at any time, `reserved_bytes` the most that it had reserved. `step_ms` is the median
time from one update to the next over the second half of them, without waiting. `retries` counts how often torch's allocator found no room in that
half, gave back its cached bytes and tried again. `weights` is a hash of the weights after the last update. A program that sets no seed gets one. With
several processes by torchrun, the first writes.
"""

import json
import os
import runpy
import statistics
import sys
import time
import zlib
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def retries():
    """How often torch's allocator found no room so far."""
    return torch.cuda.memory_stats().get("num_alloc_retries", 0) if torch.cuda.is_available() else 0


class Watched:
    """The time of a program's steps. The optimizer that is used first counts them."""

    def __init__(self, output, steps):
        self.output, self.steps = output, steps
        self.optimizer = None
        self.times = []
        self.retries = 0
        self.peak = self.reserved = 0
        self.reset = torch.cuda.reset_peak_memory_stats

    def note(self):
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())
            self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())

    def reset_peak(self, device=None):
        """Peaks may be reset by the program, or by what watches it."""
        self.note()
        self.reset(device)

    def updated(self, optimizer, *_):
        self.optimizer = self.optimizer or optimizer
        if optimizer is self.optimizer:
            self.times.append(time.perf_counter())
            if len(self.times) == self.steps // 2:
                self.retries = retries()
            if len(self.times) > self.steps:
                raise SystemExit(0)

    def tell(self):
        self.note()
        spans = [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]
        line = {"steps": len(self.times), "peak_bytes": self.peak, "reserved_bytes": self.reserved}
        if spans:
            line["step_ms"] = round(1e3 * statistics.median(spans[len(spans) // 2 :]), 2)
            line["retries"] = retries() - self.retries
            weights = [p.detach().float().cpu() for group in self.optimizer.param_groups for p in group["params"]]
            line["weights"] = zlib.crc32(b"".join(weight.numpy().tobytes() for weight in weights))
        self.output.write_text(json.dumps(line))


def main():
    output, steps, program, *arguments = sys.argv[1:]
    watched = Watched(Path(output).resolve(), int(steps))
    register_optimizer_step_post_hook(watched.updated)
    torch.cuda.reset_peak_memory_stats = watched.reset_peak
    torch.manual_seed(0)
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).resolve().parent)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        if os.environ.get("RANK", "0") == "0":
            watched.tell()


if __name__ == "__main__":
    main()
