"""Drops saved tensors that no backward pass reads, at the ends of modules and without any note of calls.

When a module has returned, the nodes of its outputs show which saved tensors they do not read. Only these tensors get hooks; the other saved
tensors of the step need none. A dropped tensor cannot be made again. So this is only for programs whose first steps have shown no other reader,
and a later reader gets an error.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from ..._native import view_of
from ..memory.masks import mask_of
from ..plan.counts import Counts
from ..plan.pack_schedule import PackSchedule
from ..plan.unread import blank
from ..record.readers import is_reading, is_sign, unread
from ..record.transforms import is_inside
from .slots import modified

__all__ = ["Unread", "drop_after", "give"]


class Unread:
    """A handle that autograd holds for a saved tensor that nobody reads, or of which only the signs are read.

    Attributes
    ----------
    schedule, counts
        The plan of the pass, and its counts.
    k
        The tensor's number among the packs of the pass; -1 if the pass did not pack it.
    tensor
        The tensor, until it is dropped.
    origin, version, view
        The saved tensor, weakly; its version; and it as a view of its storage.
    name, reader
        The module, and the node that saved the tensor.
    mask
        The tensor's signs, if these are read.
    """

    __slots__ = ("counts", "device", "k", "mask", "name", "origin", "reader", "schedule", "tensor", "version", "view")

    def __init__(self, schedule: PackSchedule, counts: Counts, tensor: Tensor, k: int, origin: Tensor) -> None:
        self.schedule, self.counts, self.k = schedule, counts, k
        self.tensor: Tensor | None = tensor
        self.origin, self.version, self.view = weakref.ref(origin), tensor._version, view_of(tensor)
        self.device = tensor.device
        self.name = ""
        self.reader: tuple[str, int] | None = None
        self.mask: Any = None


def drop_after(schedule: PackSchedule, counts: Counts, name: str, outputs: Any, signs: bool) -> bool:
    """Drops the saved tensors that the nodes of a module's outputs do not read. Of tensors that are read for their signs, keeps the signs if `signs`
    holds. Returns whether any of them is dropped now, or nothing may be dropped."""
    is_any = False
    if torch.is_anomaly_enabled() or torch._C._len_torch_dispatch_stack() or is_inside():
        # The program looks at tensors.
        return True
    for saved, reader in unread(outputs):
        if is_sign(reader) and not signs:
            continue
        packed = getattr(saved, "data", None)
        handle = packed if type(packed) is Unread else Unread(schedule, counts, packed, -1, packed) if isinstance(packed, Tensor) else None
        if handle is None:
            continue
        if handle.tensor is None:
            # A noted call of the module has dropped it.
            handle.name = handle.name or name
            is_any = True
            continue
        if is_sign(reader):
            handle.mask = mask_of(handle.tensor)
            if handle.mask is None:
                continue
        if handle is not packed and not _holds(saved, handle):
            continue
        handle.name, handle.reader, handle.tensor = name, reader, None
        is_any = True
    return is_any


def _holds(saved: Any, handle: Unread) -> bool:
    """Puts a handle in place of a saved tensor, unless hooks of the program have packed it."""
    try:
        saved.register_hooks(lambda _: handle, give)
    except RuntimeError:
        return False
    return True


def give(handle: Unread, frames: int = 1) -> Tensor:
    """Returns a saved tensor. Autograd calls this, or calls the function above it if `frames` is 2.

    Raises
    ------
    RuntimeError
        If the tensor was dropped, and something other than its node asks for it.
    """
    origin = handle.tensor if handle.tensor is not None else handle.origin()
    if origin is not None and origin._version != handle.version:
        raise modified(origin, handle.version)
    if handle.tensor is not None:
        return handle.tensor
    assert handle.reader is not None
    if not is_reading(handle.reader, frames):
        handle.schedule.is_asked = True
        shape = ", ".join(map(str, handle.view[0]))
        raise RuntimeError(
            f"tightfit: {handle.name} has saved a tensor of shape [{shape}] that its backward pass does not read, so it was dropped; now something else "
            "asks for it: create_graph, anomaly detection, a dispatch mode, or a hook. The steps after this one can recompute it; run such a step among "
            "the first ones to avoid this error"
        )
    if handle.mask is not None:
        handle.counts.masked += 1
        return handle.mask.tensor()
    handle.counts.dropped += 1
    return blank(handle.view, handle.device)
