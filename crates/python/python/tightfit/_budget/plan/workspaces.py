"""Chooses a limit on the workspaces of convolutions within a budget. Only the library that `tightfit run` preloads can apply it.

The workspaces of cuDNN's fastest engines may be largest at exactly the operations at which a step needs the most memory. In less workspace,
convolutions run in micro-batches or use other engines, and their times change. The best limit for a step depends on its plan. So operations are
measured under a few limits, and a plan is searched for each.

PyTorch caches a cuDNN plan for each thread and each form of a convolution, and the plan keeps the workspace that it had when it was made. So
measurements under a limit run on a thread of their own, which then ends, and the limit is chosen before the model first runs.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch

from ...errors import Error
from ...limits import set_limits
from ..record.recorder import Recorder
from ..record.rerunnable import CONVOLUTIONS
from ..record.times import Times, chosen_limit, key_of

__all__ = ["Searched", "apart", "choose", "inherit", "limits", "may_be_chosen", "settle", "times_at_best"]

T = TypeVar("T")

# The limits to try, as fractions of the largest workspace. Measuring again pays if the largest workspace is at least 1 / WORTH of the budget.
PARTS, WORTH = (4, 16), 64
# A limit must save at least this share of time or memory: predictions are off by a few percent, and other algorithms produce other bits.
WORTHWHILE = 0.05
_WITH_WORKSPACES = {*CONVOLUTIONS, "convolution_backward"}


class Searched(NamedTuple):
    """The result of a short search under one limit on workspaces: whether it fits, its time and peak, and the time of keeping everything."""

    fits: bool
    time_us: float
    peak: int
    plain_us: float

    def is_better_than(self, other: Searched) -> bool:
        if self.fits != other.fits:
            return self.fits
        return self.time_us < (1 - WORTHWHILE) * other.time_us if self.fits else self.peak < (1 - WORTHWHILE) * other.peak

    def gain_over(self, other: Searched) -> str:
        if self.fits != other.fits:
            return "a plan fits"
        what, less = ("time", self.time_us / other.time_us) if self.fits else ("memory", self.peak / other.peak)
        return f"a plan takes {100 * (1 - less):.0f}% less {what}"


def may_be_chosen() -> bool:
    """Whether a limit may still be chosen: under `run --budget`, if the user has set none. With `cudnn.benchmark`, PyTorch chooses by time alone."""
    found = os.environ.get
    is_ours = bool(found("TIGHTFIT_BUDGET")) and bool(found("TIGHTFIT_CUDNN")) and found("TIGHTFIT_WORKSPACE") == "auto"
    return is_ours and not chosen_limit.settled and not torch.backends.cudnn.benchmark


def choose(size: int | None) -> bool:
    """Limits the workspace of each convolution from now on to `size` bytes, or to its own choice. Returns whether that was possible."""
    if size == chosen_limit.size:
        return True
    try:
        set_limits(workspace="default" if size is None else size)
    except Error:
        return False
    chosen_limit.size = size
    return True


def settle() -> None:
    """Keeps the limit as it is, because from here on cached cuDNN plans keep their workspaces."""
    chosen_limit.settled = True


def limits(recorder: Recorder, times: Times, budget: int) -> list[int]:
    """Limits to try for a recorded step, in bytes, the largest first. Empty if no workspace is large."""
    largest = max((times.known[key][1] for key in _keys(recorder) if key in times.known), default=0)
    return [largest // part for part in PARTS] if largest * WORTH >= budget else []


def inherit(known: Times, times: Times) -> None:
    """Copies the measurements that do not depend on the limit: rates of copies, and all operations except convolutions."""

    def is_same(key: str) -> bool:
        return _WITH_WORKSPACES.isdisjoint(key.partition("(")[0].split("."))

    times.rates = known.rates | times.rates
    times.known = {key: value for key, value in known.known.items() if is_same(key)} | times.known
    times.blocks = {key: value for key, value in known.blocks.items() if is_same(key)} | times.blocks


def times_at_best(recorder: Recorder, times: Times, limit: int) -> Times:
    """The measurements that would hold if all convolutions took as long within a limit as they do without."""
    found = copy.copy(times)
    found.known, found.blocks = dict(times.known), dict(times.blocks)
    for key in _keys(recorder).intersection(found.known):
        time_us, workspace = found.known[key]
        found.known[key] = time_us, min(workspace, limit)
        found.blocks.pop(key, None)
    return found


def _keys(recorder: Recorder) -> set[str]:
    """The keys of measurements of convolutions."""
    return {key_of(operation) for operation in recorder.operations if operation.name in _WITH_WORKSPACES}


def apart(run: Callable[[], T], device: torch.device) -> T:
    """Runs a function on another thread, on the stream of this thread."""

    def on_stream() -> T:
        if device.type != "cuda":
            return run()
        with torch.cuda.stream(stream):
            return run()

    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(on_stream).result()
