"""A forward pass without a plan: what autograd saves waits on the host."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from .forms import other_layout
from .recorder import Recorder
from .slots import Counts, modified, unowned

__all__ = ["SafePass"]

# What a pass without a plan leaves on the device.
SMALL_BYTES = 64 << 10


class SafePass:
    """A forward pass without a plan: everything large goes to the host as it comes, and waits there.

    With a recorder, this is how a step that cannot run on fake tensors is recorded: the device holds next to nothing.
    """

    def __init__(self, recorder: Recorder | None, counts: Counts) -> None:
        self.recorder = recorder
        self.counts = counts

    def pack(self, tensor: Tensor) -> Any:
        recorder = self.recorder
        number = -1
        external = False
        if other_layout(tensor):
            return number, unowned(tensor), tensor._version, None
        if recorder is not None:
            number = recorder.saved(tensor)
            external = recorder.storage(tensor).external is not None
        leaf = tensor.requires_grad and tensor.is_leaf
        if leaf or external or type(tensor) is not Tensor or tensor.numel() * tensor.itemsize < SMALL_BYTES and recorder is None:
            return number, unowned(tensor), tensor._version, None
        with _paused(recorder), torch.no_grad():
            # Strides may be 0 or overlap: what is moved is what lies between the first element and the last.
            spanned = tensor.as_strided((_span(tensor),), (1,))
            host = torch.empty(spanned.shape, dtype=tensor.dtype)
            host.copy_(spanned)
        return number, host, tensor._version, (weakref.ref(tensor), tensor.device, tensor.shape, tensor.stride())

    def unpack(self, handle: Any) -> Tensor:
        number, tensor, version, moved = handle
        recorder = self.recorder
        if recorder is not None and number >= 0:
            recorder.group = recorder.packs[number].group
            recorder.unpacking(number)
        if moved is None:
            if tensor._version != version:
                raise modified(tensor, version)
            return tensor
        reference, device, shape, stride = moved
        origin = reference()
        if origin is not None and origin._version != version:
            raise modified(origin, version)
        with _paused(recorder), torch.no_grad():
            back = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            back.copy_(tensor)
            back = back.as_strided(shape, stride)
        if recorder is not None and number >= 0:
            recorder.restored(number, back)
        self.counts.fetched += 1
        return back

    def seal(self) -> None:
        pass


def _span(tensor: Tensor) -> int:
    """Elements of the storage from a tensor's first to its last."""
    if tensor.numel() == 0:
        return 0
    return int(1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)))


class _paused:
    """Hides what runs inside from a recorder."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        if self.recorder is not None:
            self.recorder.paused += 1

    def __exit__(self, *_: object) -> None:
        if self.recorder is not None:
            self.recorder.paused -= 1
