"""The state of each value that autograd saves in a pass, and views of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..._native import Call

__all__ = ["Handle", "Slot", "copy_of", "laid_out", "modified", "of_view", "unowned"]


class Slot:
    """The bytes of one saved value of one pass.

    Attributes
    ----------
    number
        The plan's tensor; negative for values that the plan does not know.
    tensor
        The value, while it is on the device.
    kept
        Whether that is the saved tensor, not one that was fetched or rebuilt.
    version, origin, storage
        The version of the saved tensor; it and its storage, weakly.
    host, ticket
        Its copy on the host, and the ticket of that copy. A copy is one of the whole storage.
    call, place
        The call that makes it again, and which of its outputs it is; -1 - k for the k-th tensor that the call saves itself.
    round
        How often it was made again.
    view
        The tensor that was packed first, as a view of its storage.
    mask
        Its signs, where these are all that is read.
    leaves_now
        Whether its bytes are given back as soon as they are copied.
    """

    __slots__ = (
        "__weakref__", "call", "host", "kept", "leaves_now", "mask", "number", "origin", "place", "round", "storage", "tensor", "ticket", "version", "view",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.tensor: Tensor | None = None
        self.kept = self.leaves_now = False
        self.version = -1
        self.origin: Any = None
        self.storage: Any = None
        self.host: Tensor | None = None
        self.ticket: Any = None
        self.call: Call | None = None
        self.place = 0
        self.round = 0
        self.view: Any = None
        self.mask: Any = None


class Handle:
    """The handle that autograd holds for a saved tensor that is not just kept: its slot, its view of the slot's storage, its number in the pass, and
    the node that saves the tensor and does not read it."""

    __slots__ = ("k", "reader", "slot", "tensor", "version", "view")

    def __init__(self, k: int, tensor: Tensor) -> None:
        self.k = k
        # The saved tensor, if it just stays.
        self.tensor: Tensor | None = None
        self.version = tensor._version
        self.slot: Slot | None = None
        self.view: Any = None
        self.reader: tuple[str, int] | None = None


def modified(tensor: Tensor, version: int) -> RuntimeError:
    shape = ", ".join(map(str, tensor.shape))
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} [{shape}]] is at version {tensor._version}; expected version {version} instead."
    )


def unowned(tensor: Tensor) -> Tensor:
    """A saved tensor that refers to no node, which would make a cycle. A parameter, which none made, is itself: plain autograd, too, sees what
    a program assigns to its `.data`."""
    return tensor if tensor.is_leaf else tensor.detach()


def of_view(base: Tensor, view: Any) -> Tensor:
    """The view of a base's storage, given as shape, strides, offset and type."""
    shape, stride, offset, dtype = view
    if base.dtype is dtype:
        if base.shape == shape and base.stride() == stride and base.storage_offset() == offset:
            return base
        return base.as_strided(shape, stride, offset)
    empty = base.new_empty(0, dtype=dtype)
    return empty.set_(base.untyped_storage(), offset, shape, stride)


def laid_out(tensor: Tensor, stride: Any) -> Tensor:
    """A tensor with these strides, since kernels are chosen by strides: itself, or a copy."""
    return tensor if tensor.stride() == stride else tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)


def copy_of(tensor: Tensor) -> Tensor:
    """A copy with the same strides. Views with gaps keep these."""
    return laid_out(tensor.clone(), tensor.stride())
