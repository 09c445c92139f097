#!/usr/bin/env python3
"""Runs a program of PyTorch as it is, ends it after a number of updates of its weights, and writes their time and memory as a line of JSON.

usage: [tightfit run .. --] python scripts/gpu_run/watched.py OUTPUT STEPS PROGRAM.py ARGUMENT ..

`peak_bytes` is the most that torch's allocator had allocated at any time, `reserved_bytes` the most that it had reserved. `step_ms` is the median
time from one update to the next over the second half of them, without waiting. `weights` is a hash of the weights after the last update. A program
that sets no seed gets one. With several processes by torchrun, the first writes.

If WATCHED_LOCK names a file, programs that run side by side take turns: while one of them is in the half that is timed, the others wait in their
next update.
"""

import fcntl
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


class Watched:
    """The time of a program's steps. The optimizer that is used first counts them."""

    def __init__(self, output, steps):
        self.output, self.steps = output, steps
        self.optimizer = None
        self.times = []
        self.peak = self.reserved = 0
        self.reset = torch.cuda.reset_peak_memory_stats
        self.lock = os.open(os.environ["WATCHED_LOCK"], os.O_CREAT | os.O_RDWR) if "WATCHED_LOCK" in os.environ else None

    def note(self):
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())
            self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())

    def reset_peak(self, device=None):
        """Peaks may be reset by the program, or by what watches it."""
        self.note()
        self.reset(device)

    def wait(self):
        """Waits for a program that is timed. From the half of the steps on, this program is timed."""
        count, half = len(self.times), self.steps // 2
        if self.lock is None or count > half:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        fcntl.flock(self.lock, fcntl.LOCK_EX if count == half else fcntl.LOCK_SH)
        if count < half:
            fcntl.flock(self.lock, fcntl.LOCK_UN)

    def updated(self, optimizer, *_):
        self.optimizer = self.optimizer or optimizer
        if optimizer is self.optimizer:
            self.wait()
            self.times.append(time.perf_counter())
            if len(self.times) > self.steps:
                raise SystemExit(0)

    def tell(self):
        if self.lock is not None:
            # Processes that the program forked have it open.
            fcntl.flock(self.lock, fcntl.LOCK_UN)
        self.note()
        spans = [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]
        line = {"steps": len(self.times), "peak_bytes": self.peak, "reserved_bytes": self.reserved}
        if spans:
            line["step_ms"] = round(1e3 * statistics.median(spans[len(spans) // 2 :]), 2)
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
