"""How much workspace convolutions may take, as a part of the budget, where `tightfit run` preloads what can limit it.

The workspaces of cuDNN's fastest engines may be largest at the very operations at which a step needs most memory. With less, convolutions run in
micro-batches or use other engines, which take other times. The faster choice for a step depends on its plan. So operations are measured under a
few limits, and a plan is searched for each.

PyTorch keeps a plan of cuDNN for each thread and form of a convolution, with the workspace of the time at which it was made. So measurements under
a limit run on a thread that ends after them, and the limit is chosen before the model first runs.
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

# Limits that are tried, as parts of the largest workspace; and the share of the budget that this must be, for measuring again to pay.
PARTS, WORTH = (4, 16), 64
# How much less a plan must take for another limit to be worth it, as a share: predictions are off by a few percent, and other algorithms
# have other bits.
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
    """Whether the limit is still to be chosen: under `run --budget`, where its user has set none. With `cudnn.benchmark`, PyTorch chooses
    by time alone."""
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
    """Keeps the limit as it is: what runs from here on has plans of cuDNN with their workspaces."""
    chosen_limit.settled = True


def limits(recorder: Recorder, times: Times, budget: int) -> list[int]:
    """Limits to try for a recorded step, in bytes, from the largest on; none where no workspace is large."""
    largest = max((times.known[key][1] for key in _keys(recorder) if key in times.known), default=0)
    return [largest // part for part in PARTS] if largest * WORTH >= budget else []


def inherit(known: Times, times: Times) -> None:
    """Takes over the measurements that no limit on workspaces changes: rates of copies, and all operations but convolutions."""

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
