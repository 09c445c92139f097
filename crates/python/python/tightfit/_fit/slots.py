"""What a pass knows of each value that autograd saves, and views of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Counts", "Slot", "modified", "of_part", "of_view", "unowned"]


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
    elsewhere
        Backward passes on another thread than that of the forward pass.
    fresh_bytes
        Host memory allocated because an earlier graph still used the arena.
    """

    def __init__(self) -> None:
        self.packs = self.strangers = self.fetched = self.late = self.rebuilt = self.out_of_order = self.elsewhere = self.fresh_bytes = 0


class Slot:
    """One saved value of one pass: `origin` and `storage` refer weakly to what was packed first. `kept` says that its tensor is the saved one, not one that was fetched or rebuilt."""

    __slots__ = ("__weakref__", "host", "kept", "leaves", "number", "origin", "round", "storage", "tensor", "ticket", "version")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tensor: Tensor | None = None
        self.kept = False
        self.version = -1
        self.origin: Any = None
        self.storage: Any = None
        self.host: Tensor | None = None
        self.ticket: Any = None
        self.leaves: dict[int, Slot] | None = None
        self.round = 0

    def keep(self, tensor: Tensor) -> None:
        """Holds the saved tensor's bytes."""
        self.tensor = tensor.detach()
        self.kept = True


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


def of_part(tensor: Tensor, view: Any) -> Tensor:
    """A view from where a tensor begins, wherever that is in its storage."""
    return tensor.as_strided(view.shape, view.stride, tensor.storage_offset() + view.offset)


def of_view(base: Tensor, view: Any) -> Tensor:
    """The view of a base's storage."""
    if base.dtype is view.dtype:
        if base.shape == view.shape and base.stride() == view.stride and base.storage_offset() == view.offset:
            return base
        return base.as_strided(view.shape, view.stride, view.offset)
    empty = base.new_empty(0, dtype=view.dtype)
    return empty.set_(base.untyped_storage(), view.offset, view.shape, view.stride)
