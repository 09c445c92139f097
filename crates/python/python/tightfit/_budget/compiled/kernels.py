"""Times of library kernels: convolutions, matrix products, attention.

They are measured once on a GPU and kept, or estimated from their arithmetic and memory traffic.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from ..record.cost import Rates, flops, rates_of
from ..record.measure import measure_copies
from ..record.times import times_of
from . import private, properties
from .buffers import is_library
from .kept import Kept
from .moves import Link
from .operators import copies_of

__all__ = ["Kernels"]

# Timed runs of a kernel, whose shortest counts, and the most kernels that are timed for a graph. The slowest by estimate come first.
_RUNS, _KERNELS = 3, 64
# Integer operands with more elements are indices. Made-up indices would all name one place, and writes to it take up to a thousand times longer.
_INDICES = 16


class Kernels:
    """Times of kernels on one device."""

    def __init__(self, device: torch.device, kept: Kept) -> None:
        self.device = device
        self.rates: Rates = rates_of(device)
        self.kept = kept
        self.on_gpu = device.type == "cuda" and torch.cuda.is_available()

    @property
    def memory(self) -> float:
        """Bytes per microsecond that fused kernels read and write."""
        return 0.8 * self.rates.memory / 1e6

    @functools.cached_property
    def link(self) -> Link:
        """The rates of copies. They are measured on a GPU, within an eighth of its free memory."""
        times = times_of(self.device)
        if self.on_gpu and "both" not in times.rates:
            with private.real_tensors():
                measure_copies(copies_of(self.device), times, torch.cuda.mem_get_info(self.device)[0] // 2)
            times.save()
        out, into = (1e-6 * times.rates.get(way, self.rates.link) for way in ("out", "in"))
        return Link(out, into)

    def __call__(self, nodes: list[fx.Node]) -> list[float]:
        """The times of nodes in microseconds."""
        keys = [_key(node) for node in nodes]
        first = dict(zip(reversed(keys), reversed(nodes), strict=True))
        times = {key: self.kept.times[key] if key in self.kept.times else self._estimated(node) for key, node in first.items()}
        if self.on_gpu:
            count = Counter(keys)
            unknown = [key for key in first if key not in self.kept.times and _is_measured(first[key])]
            for key in sorted(unknown, key=lambda key: -times[key] * count[key])[:_KERNELS]:
                try:
                    times[key] = self.kept.times[key] = self._measured(first[key])
                except (RuntimeError, TypeError, ValueError, NotImplementedError):
                    # Too little memory is free, or the kernel rejects random values.
                    self.kept.times[key] = times[key]
        return [times[key] for key in keys]

    def extra(self, nodes: list[fx.Node]) -> list[int]:
        """The bytes that each node uses while it runs on a GPU, in addition to its operands and results, such as the workspaces of convolutions."""
        keys = [_key(node) for node in nodes]
        if self.on_gpu:
            unknown = ((key, node) for key, node in zip(keys, nodes, strict=True) if key not in self.kept.extra and _is_measured(node))
            # Matrix products use a workspace that is allocated once.
            first = {key: node for key, node in unknown if properties.name_of(node.target) not in properties.PRODUCTS}
            for key in sorted(first, key=lambda key: -self._estimated(first[key]))[:_KERNELS]:
                try:
                    self._measured(first[key], 0)
                except (RuntimeError, TypeError, ValueError, NotImplementedError):
                    self.kept.extra[key] = 0
        return [self.kept.extra.get(key, 0) for key in keys]

    def _estimated(self, node: fx.Node) -> float:
        args, kwargs = tree_map(_value, (node.args, node.kwargs))
        work = 0.0
        if isinstance(node.target, torch._ops.OpOverload):
            try:
                work = float(flops(node.target, args, kwargs, node.meta.get("val")))
            except (TypeError, ValueError, RuntimeError):
                work = 0.0
        tensors = [value for value in (_value(one) for one in (node, *node.all_input_nodes)) if isinstance(value, Tensor)]
        narrow = any(value.itemsize == 2 for value in tensors)
        traffic = sum(properties.elements(value) * value.itemsize for value in tensors)
        return float(1e6 * max(work / (self.rates.narrow if narrow else self.rates.wide), traffic / self.rates.memory) + self.rates.call_us)

    def _measured(self, node: fx.Node, runs: int = _RUNS) -> float:
        """The time of a node. The bytes that it uses are noted."""
        with private.real_tensors(), torch.no_grad(), torch.autocast("cuda", enabled=False), torch.cuda.device(self.device):
            args, kwargs = tree_map(lambda one: _real(_value(one)), (node.args, node.kwargs))
            target: Any = node.target
            torch.cuda.reset_peak_memory_stats(self.device)
            result = target(*args, **kwargs)
            self.kept.extra[_key(node)] = torch.cuda.max_memory_allocated(self.device) - torch.cuda.memory_allocated(self.device)
            del result
            times = []
            for _ in range(runs):
                first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                # Else the time until the host has launched the kernel would count.
                private.keep_busy()
                first.record()
                target(*args, **kwargs)
                last.record()
                last.synchronize()
                times.append(1e3 * first.elapsed_time(last))
            return float(min(times, default=0.0))


def _is_measured(node: fx.Node) -> bool:
    """Whether a node is measured as PyTorch runs it, with random numbers."""
    values = (_value(one) for one in node.all_input_nodes)
    indices = (one for one in values if isinstance(one, Tensor) and not one.is_floating_point() and not one.is_complex())
    return is_library(node.target) and all(properties.elements(one) <= _INDICES for one in indices)


def _value(one: Any) -> Any:
    return one.meta.get("val") if isinstance(one, fx.Node) else one


def _real(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value.node.hint or 1)
    if not isinstance(value, Tensor):
        return value
    shape = [one if isinstance(one, int) else int(one.node.hint or 1) for one in value.shape]
    strides = [one if isinstance(one, int) else int(one.node.hint or 1) for one in value.stride()]
    made = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    return made.uniform_(-0.1, 0.1) if value.is_floating_point() else made.zero_()


def _key(node: fx.Node) -> str:
    parts = [str(node.target)]
    for one in node.args:
        value = _value(one)
        parts.append(f"{value.dtype}{tuple(value.shape)}{tuple(value.stride())}" if isinstance(value, Tensor) else str(value))
    return " ".join(parts)
