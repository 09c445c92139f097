"""Keeps PyTorch's allocator within a budget."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["enforce", "expand_segments", "reserve_of", "slack_of", "within"]

# Where a program's user sets the allocator up: then nothing is changed.
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


# What the allocator may reserve beyond the budget, for gaps between blocks: a share of the budget, and at least so many bytes.
_GAPS, _LEAST_GAPS = 32, 64 << 20


def enforce(budget: int, device: torch.device) -> None:
    """Bounds what the allocator reserves on a GPU, so that a program that grows fails instead of taking more.

    The bound is the budget, or what is reserved already where that is more, with room for gaps between blocks: a step that fits
    its budget never fails for them. Where no free block is long enough, the allocator gives cached blocks back and tries again by
    itself.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(device).total_memory
    allowed = max(budget, torch.cuda.memory_reserved(device))
    allowed += max(_LEAST_GAPS, allowed // _GAPS)
    if allowed < total:
        torch.cuda.set_per_process_memory_fraction(allowed / total, device)


@contextmanager
def within(budget: int, device: torch.device) -> Iterator[None]:
    """Enforces a budget for a while, and leaves nothing cached."""
    if device.type != "cuda" or not torch.cuda.is_available():
        yield
        return
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    before = read(device) if read is not None else 1.0
    enforce(budget, device)
    try:
        yield
    finally:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(before, device)


def expand_segments(device: torch.device) -> None:
    """Lets the allocator's segments grow, so that little more is reserved than allocated, unless the user set it up."""
    if device.type != "cuda" or not torch.cuda.is_available() or any(os.environ.get(name) for name in _SETTINGS):
        return
    change = getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if change is not None:
        change("expandable_segments:True")


def reserve_of(budget: int, device: torch.device) -> int:
    """Bytes of a budget for workspaces of libraries, where these were not measured."""
    if device.type != "cuda":
        return 0
    return min(budget // 4, (96 << 20) + budget // 50)


def slack_of(budget: int, device: torch.device) -> int:
    """Bytes of a budget that a plan leaves, where it must give something up: for gaps between blocks."""
    if device.type != "cuda":
        return 0
    return min(budget // 20, (8 << 20) + budget // 200)
