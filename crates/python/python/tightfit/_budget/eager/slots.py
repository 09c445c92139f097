"""Views of the bytes of saved tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ALIGNMENT", "copy_of", "laid_out", "modified", "of_view"]

# Addresses of tensors are multiples of this number of bytes, as far as kernels ask.
ALIGNMENT = 256


def modified(tensor: Tensor, version: int) -> RuntimeError:
    shape = ", ".join(map(str, tensor.shape))
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} [{shape}]] is at version {tensor._version}; expected version {version} instead."
    )


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
    """A copy with the same strides and the same alignment, since kernels are chosen by both."""
    shift = tensor.data_ptr() % ALIGNMENT // tensor.itemsize
    copy = tensor.clone()
    if not tensor.numel() or not shift and copy.stride() == tensor.stride():
        return laid_out(copy, tensor.stride())
    # Elements may lie apart, or several at one address, so the whole span is copied.
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    made = tensor.new_empty(shift + span)
    made[shift:].copy_(tensor.as_strided((span,), (1,)))
    return made.as_strided(tensor.shape, tensor.stride(), shift)
