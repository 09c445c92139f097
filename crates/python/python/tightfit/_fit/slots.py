"""What a pass knows of each value that autograd saves, and the views of its bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["Counts", "Slot", "bytes_of", "modified", "of_view"]


class Counts:
    """What happened, since the plan was made.

    Attributes
    ----------
    packs, strangers
        Tensors packed, and those that the plan did not expect.
    fetched, late, rebuilt
        Tensors copied back; those that were copied back only when they were needed, unplanned; and tensors rebuilt.
    out_of_order
        Unpacks in another order than recorded.
    fresh_bytes
        Host memory allocated because an earlier graph still used the arena.
    """

    def __init__(self) -> None:
        self.packs = self.strangers = self.fetched = self.late = self.rebuilt = self.out_of_order = self.fresh_bytes = 0


class Slot:
    """One saved value of one pass."""

    __slots__ = ("__weakref__", "host", "leaves", "number", "origin", "round", "tensor", "ticket", "version")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tensor: Tensor | None = None
        self.version = -1
        self.origin: Any = None
        self.host: Tensor | None = None
        self.ticket: Any = None
        self.leaves: dict[int, Slot] | None = None
        self.round = 0


def modified(tensor: Tensor, version: int) -> RuntimeError:
    shape = ", ".join(map(str, tensor.shape))
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} [{shape}]] is at version {tensor._version}; expected version {version} instead."
    )


def of_view(base: Tensor, view: Any) -> Tensor:
    """The view of a base's storage."""
    if base.dtype is view.dtype:
        if base.shape == view.shape and base.stride() == view.stride and base.storage_offset() == view.offset:
            return base
        return base.as_strided(view.shape, view.stride, view.offset)
    empty = torch.empty(0, dtype=view.dtype, device=base.device)
    return empty.set_(base.untyped_storage(), view.offset, view.shape, view.stride)


def bytes_of(tensor: Tensor) -> Tensor:
    """A tensor's whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
