"""PyTorch's allocator on a GPU: its blocks, the bytes that it reserves, and how often it finds no room.

A plan's peak is at most the budget. Gaps between blocks come on top, so the allocator may reserve about 3% more than the budget. Where it reserves more,
its cache is emptied before the next pass. An allocation fails only if a quarter more than the budget does not suffice.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..site.tightfit_allocator import GROWING, settings
from .reservation import InitialReservation

__all__ = [
    "LOOKS",
    "ROUND",
    "SMALL",
    "Cap",
    "beside",
    "budget_for",
    "enforce",
    "expand_segments",
    "may_grow",
    "most_reserved",
    "release",
    "reserve_of",
    "reserved_and_retries",
    "room_for_gaps",
    "slack_of",
    "there_on",
    "within",
]

ROUND = 512
# Blocks up to this size are in other segments than large blocks. Their gaps do not count.
SMALL = 1 << 20
# Plans leave this fraction (1 / n) of the budget free below the allocator's bound, because gaps are only predicted.
_UNSURE = 128
# The fraction (1 / n) of a budget that the allocator may reserve for gaps on top of it, and the least bytes for gaps.
_GAPS, _LEAST_GAPS = 32, 128 << 20
# The number of recent passes over which crowded ones are counted.
LOOKS = 4
# The fraction (1 / n) of a budget that the allocator may reserve on top of it before an allocation fails.
_MORE = 4

# By GPU: the bound of each owner, and the share of the GPU that the program itself allowed before.
_bounds: dict[int, dict[int, int]] = {}
_shares: dict[int, float] = {}
# By GPU: the owner of the pass that began last, and how often the allocator had tried again by then.
_last: dict[torch.device, tuple[weakref.ref[Cap], int]] = {}
# All caps, by GPU. The largest limit counts.
_caps: dict[torch.device, weakref.WeakSet[Cap]] = {}


class Cap:
    """The limit of the bytes that are reserved for the passes of one model.

    A pass is crowded if the allocator reserved more than the limit, or found no room and waited for the GPU. After a crowded pass, the cache is emptied.
    If many passes are crowded, another plan may help. If not, the limit rises.

    The watched passes of a plan have no limit, since they show the memory of the program's loss, of its optimizer and of whatever else it holds. All later
    passes have one. Above it, a quarter of the budget remains before an allocation fails, so that gaps between blocks end no program.
    """

    def __init__(self) -> None:
        # The bytes that may be reserved without consequences; None before and between plans. Beyond the allowed bytes, an allocation fails.
        self.limit: int | None = None
        self.allowed = 0
        # The least limit, since passes stayed crowded after `begin` had reported it.
        self.least = 0
        self.has_reported = self.is_given_up = False
        # For each of the last passes, whether it was crowded.
        self.recent: deque[bool] = deque(maxlen=LOOKS)

    def begin(self, device: torch.device, needed: int, holds: bool) -> bool:
        """Begins a pass, for which the limit holds or not. Returns whether half of the last passes were crowded.

        The allocator counts for the whole GPU. Bytes and tries until the next pass of any model are taken to be of this pass. Many tries in one pass
        count once, since they may be of an evaluation after it.
        """
        if self.is_given_up:
            return False
        reserved, count = reserved_and_retries(device)
        waited = crowded = False
        if device in _last:
            before, counted = _last[device][0](), _last[device][1]
            waited = count > counted
            crowded = waited or reserved > max((cap.limit or 0 for cap in _caps[device]), default=0)
            if before is not None and before.limit is not None:
                before.recent.append(crowded)
        _last[device] = weakref.ref(self), count
        _caps.setdefault(device, weakref.WeakSet()).add(self)
        if not holds:
            self.lift()
            if torch.backends.cudnn.benchmark:
                enforce(needed + needed // _MORE, device, self)
            return False
        if self.limit is None:
            torch.cuda.empty_cache()
            self.recent.clear()
            self.limit = max(self.least, needed + room_for_gaps(needed))
            self.allowed = enforce(max(needed + needed // _MORE, reserved_and_retries(device)[0]), device, self)
        elif crowded:
            if waited:
                # The next pass may find less room.
                self.allowed = enforce(self.allowed + needed // _MORE, device, self)
            if self.has_reported:
                self.limit = self.least = max(self.limit, reserved)
            else:
                torch.cuda.empty_cache()
        is_often = 2 * sum(self.recent) >= LOOKS
        if is_often:
            self.recent.clear()
            self.has_reported = True
        return is_often

    def give_up(self) -> None:
        """Limits nothing any more: some steps of the program need more than the budget."""
        self.is_given_up = True
        self.lift()

    def lift(self) -> None:
        """Lets the allocator take what it needs."""
        self.limit = None
        release(self)


def reserved_and_retries(device: torch.device) -> tuple[int, int]:
    """The bytes that the allocator of a GPU has reserved, and how often it has tried again."""
    # `memory_stats` does the same, and takes much longer to flatten it.
    found = torch.cuda.memory_stats_as_nested_dict(device)
    return int(found.get("reserved_bytes", {}).get("all", {}).get("current", 0)), int(found.get("num_alloc_retries", 0))


def room_for_gaps(bytes: int) -> int:
    """The bytes for gaps between blocks that may be reserved beyond `bytes`."""
    return max(_LEAST_GAPS, bytes // _GAPS)


def enforce(needed: int, device: torch.device, owner: object) -> int:
    """Bounds the bytes that the allocator reserves on a GPU: to the bytes that are needed, and room for gaps between blocks. Returns the bound.

    A program that grows further fails. The bound holds until `release`, or until its owner is gone. The largest bound of all owners counts.
    """
    allowed = needed + room_for_gaps(needed)
    if device.type != "cuda" or not torch.cuda.is_available():
        return allowed
    index = int(torch.cuda.current_device() if device.index is None else device.index)
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


def _share(index: int) -> float:
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return float(read(index)) if read is not None else 1.0


@contextmanager
def within(budget: int, device: torch.device) -> Iterator[None]:
    """Enforces a budget inside a `with` block, and empties the allocator's cache at its end."""
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
    """The owner of the bound while operations are measured."""


def beside(device: torch.device) -> int:
    """Bytes of a GPU that are used outside of PyTorch's allocator: by CUDA's context, NCCL, other libraries and other processes."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return max(0, int(total - free - torch.cuda.memory_reserved(device)))


def may_grow(device: torch.device) -> bool:
    """Whether the allocator's segments will be expandable when a plan runs, according to the allocator's settings."""
    return device.type == "cuda" and settings() in ([], [GROWING])


def expand_segments(device: torch.device) -> bool:
    """Makes the allocator's segments expandable, so that it reserves little more than it allocates, unless the user configured the allocator. Returns
    whether they are expandable."""
    known = settings()
    if device.type != "cuda" or not torch.cuda.is_available() or known:
        return device.type == "cuda" and known == [GROWING]
    # Its older name warns in versions that have both.
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if change is None:
        return False
    change(GROWING)
    return True


def there_on(device: torch.device) -> InitialReservation:
    """The blocks of PyTorch's allocator on a GPU, for the current stream, while no step runs."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return InitialReservation()
    stream = torch.cuda.current_stream(device).cuda_stream
    index = torch.cuda.current_device() if device.index is None else device.index
    size, free = 0, []
    for segment in torch.cuda.memory_snapshot():
        ours = segment["device"] == index and segment["stream"] == stream and not any(segment.get("segment_pool_id", (0, 0)))
        # The allocator frees cached segments without live blocks when it needs room, and CUDA graphs use other pools.
        if not ours or segment["segment_type"] != "large" or segment.get("is_expandable") or not segment.get("active_size", 1):
            continue
        size += segment["total_size"]
        free += [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
    return InitialReservation(size, free)


def most_reserved(budget: int) -> int:
    """The predicted bytes that the allocator may reserve for a plan under a budget."""
    return budget + room_for_gaps(budget) - budget // _UNSURE


def budget_for(reserved: int) -> int:
    """The least budget under which these bytes may be reserved."""
    with_least = (reserved - _LEAST_GAPS) * _UNSURE // (_UNSURE - 1)
    return max(0, min(with_least, reserved * _UNSURE // (_UNSURE + _UNSURE // _GAPS - 1)) + 1) if reserved > 0 else 0


def reserve_of(budget: int, device: torch.device) -> int:
    """The assumed bytes of a budget for workspaces of libraries, if these were not measured."""
    if device.type != "cuda":
        return 0
    return min(budget // 4, (96 << 20) + budget // 50)


def slack_of(budget: int, device: torch.device) -> int:
    """Bytes of a budget that a plan leaves free for gaps between blocks, if it has to move or recompute tensors."""
    if device.type != "cuda":
        return 0
    return min(budget // 20, (8 << 20) + budget // 200)
