"""Keeps PyTorch's allocator within a budget."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..site.tightfit_allocator import GROWING, settings
from .allocator import There

__all__ = [
    "beside",
    "budget_for",
    "enforce",
    "expand_segments",
    "may_grow",
    "most_reserved",
    "release",
    "reserve_of",
    "room_for_gaps",
    "slack_of",
    "there_on",
    "within",
]

# What a plan leaves of the bound on what is reserved, since its gaps are only predicted: a share of the budget.
_UNSURE = 128
# What the allocator may reserve beyond that, for gaps between blocks: a share of it, and at least so many bytes.
_GAPS, _LEAST_GAPS = 32, 128 << 20


# By GPU: the bound of each owner, and the share of the GPU that the program itself allowed before.
_bounds: dict[int, dict[int, int]] = {}
_shares: dict[int, float] = {}


def room_for_gaps(bytes: int) -> int:
    """What may be reserved beyond so many bytes, for gaps between blocks."""
    return max(_LEAST_GAPS, bytes // _GAPS)


def enforce(needed: int, device: torch.device, owner: object) -> int:
    """Bounds what the allocator reserves on a GPU to what is needed, with room for gaps between blocks, so that a program that grows fails
    instead of taking more; returns the bound.

    Where no free block is long enough, the allocator gives cached blocks back and tries again by itself. It holds until `release`, or as
    long as its owner lives; of several owners' bounds, the largest counts.
    """
    allowed = needed + room_for_gaps(needed)
    if device.type != "cuda" or not torch.cuda.is_available():
        return allowed
    index = _index(device)
    if id(owner) not in _bounds.setdefault(index, {}):
        weakref.finalize(owner, _forget, id(owner)).atexit = False
    _shares.setdefault(index, _share(index))
    _bounds[index][id(owner)] = allowed
    _apply(index)
    return allowed


def release(owner: object) -> None:
    """Lifts an owner's bounds."""
    _forget(id(owner))


def _forget(owner: int) -> None:
    for index, bounds in _bounds.items():
        if bounds.pop(owner, None) is not None:
            _apply(index)


def _apply(index: int) -> None:
    share = _shares[index]
    if _bounds[index]:
        share = min(share, max(_bounds[index].values()) / torch.cuda.get_device_properties(index).total_memory)
    torch.cuda.set_per_process_memory_fraction(share, index)


def _index(device: torch.device) -> int:
    return int(torch.cuda.current_device() if device.index is None else device.index)


def _share(index: int) -> float:
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return float(read(index)) if read is not None else 1.0


@contextmanager
def within(budget: int, device: torch.device) -> Iterator[None]:
    """Enforces a budget for a while, and leaves nothing cached."""
    if device.type != "cuda" or not torch.cuda.is_available():
        yield
        return
    owner = _Measuring()
    enforce(max(budget, int(torch.cuda.memory_reserved(device))), device, owner)
    try:
        yield
    finally:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        release(owner)


class _Measuring:
    """Owns a bound while operations are measured."""


def beside(device: torch.device) -> int:
    """Bytes of a GPU that are taken beside PyTorch's allocator: by CUDA's context, NCCL and other libraries, and other processes."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return max(0, int(total - free - torch.cuda.memory_reserved(device)))


def may_grow(device: torch.device) -> bool:
    """Whether the allocator's segments grow once a plan is carried out, as far as its settings say it."""
    return device.type == "cuda" and settings() in ([], [GROWING])


def expand_segments(device: torch.device) -> bool:
    """Lets the allocator's segments grow, so that little more is reserved than allocated, unless the user set it up; whether they do."""
    known = settings()
    if device.type != "cuda" or not torch.cuda.is_available() or known:
        return device.type == "cuda" and known == [GROWING]
    # Its older name warns in versions that have both.
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if change is None:
        return False
    change(GROWING)
    return True


def there_on(device: torch.device) -> There:
    """What PyTorch's allocator has on a GPU, for the current stream, while no step runs."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return There()
    stream = torch.cuda.current_stream(device).cuda_stream
    index = torch.cuda.current_device() if device.index is None else device.index
    size, free = 0, []
    for segment in torch.cuda.memory_snapshot():
        ours = segment["device"] == index and segment["stream"] == stream and not any(segment.get("segment_pool_id", (0, 0)))
        # What is cached alone goes back before it is waited for, and graphs have pools of their own.
        if not ours or segment["segment_type"] != "large" or segment.get("is_expandable") or not segment.get("active_size", 1):
            continue
        size += segment["total_size"]
        free += [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
    return There(size, free)


def most_reserved(budget: int) -> int:
    """What a plan may make the allocator reserve under a budget, as far as that is predicted."""
    return budget + room_for_gaps(budget) - budget // _UNSURE


def budget_for(reserved: int) -> int:
    """The least budget under which so much may be reserved."""
    with_least = (reserved - _LEAST_GAPS) * _UNSURE // (_UNSURE - 1)
    return max(0, min(with_least, reserved * _UNSURE // (_UNSURE + _UNSURE // _GAPS - 1)) + 1) if reserved > 0 else 0


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
