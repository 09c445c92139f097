"""Views of the bytes of saved tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["copy_of", "laid_out", "modified", "of_view"]


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
    """A copy with the same strides. Views with gaps keep these."""
    return laid_out(tensor.clone(), tensor.stride())
