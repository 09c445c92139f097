"""A forward pass without a plan: what autograd saves waits on the host."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from .recorder import Recorder
from .slots import Counts, modified

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
        if recorder is not None:
            number = recorder.saved(tensor)
            external = recorder.storage(tensor).external is not None
        leaf = tensor.requires_grad and tensor.is_leaf
        if leaf or external or type(tensor) is not Tensor or tensor.numel() * tensor.itemsize < SMALL_BYTES and recorder is None:
            return number, tensor.detach(), tensor._version, None
        with _paused(recorder):
            host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            host.copy_(tensor)
        return number, host, tensor._version, (weakref.ref(tensor), tensor.device)

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
        reference, device = moved
        origin = reference()
        if origin is not None and origin._version != version:
            raise modified(origin, version)
        with _paused(recorder), torch.no_grad():
            back = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            back.copy_(tensor)
        if recorder is not None and number >= 0:
            recorder.restored(number, back)
        self.counts.fetched += 1
        return back

    def seal(self) -> None:
        pass


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
