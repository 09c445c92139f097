"""A forward pass without a plan: what autograd saves waits on the host."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from ..._native import unowned
from ..plan.counts import Counts
from ..record.inputs import other_layout
from ..record.recorder import Recorder
from ..record.transforms import StepsAside
from .slots import modified
from .state import State

__all__ = ["SafePass"]

# Bytes that a pass without a plan leaves on the device.
SMALL_BYTES = 64 << 10


class SafePass(StepsAside):
    """A forward pass without a plan: everything large goes to the host as it comes, and waits there.

    With a recorder, this is how a step that cannot run on fake tensors is recorded: the device holds next to nothing.
    """

    needs_hooks = True
    # Of the models that run in it.
    state = State()

    def __init__(self, recorder: Recorder | None, counts: Counts) -> None:
        self.recorder = recorder
        self.counts = counts
        # Tensors that wait until the operation that saves them has returned, since it may write them first; and the number of nodes at that time.
        self.pending: list[tuple[_Waiting, Tensor]] = []
        self.nodes = 0

    def pack(self, tensor: Tensor) -> Any:
        if self.pending and torch._C._autograd._get_sequence_nr() > self.nodes:
            self.flush()
        recorder = self.recorder
        number = -1
        external = False
        if other_layout(tensor):
            return _Waiting(number, unowned(tensor))
        if recorder is not None:
            number = recorder.saved(tensor)
            external = recorder.storage(tensor).external is not None
        leaf = tensor.requires_grad and tensor.is_leaf
        waiting = _Waiting(number, unowned(tensor))
        if leaf or external or type(tensor) is not Tensor or tensor.numel() * tensor.itemsize < SMALL_BYTES and recorder is None or self.state.holds(tensor):
            return waiting
        self.pending.append((waiting, tensor))
        self.nodes = torch._C._autograd._get_sequence_nr()
        return waiting

    def flush(self) -> None:
        """Moves what waits."""
        pending, self.pending = self.pending, []
        for waiting, tensor in pending:
            with _paused(self.recorder), torch.no_grad():
                # Strides may be 0 or overlap: what is moved is what lies between the first element and the last.
                spanned = tensor.as_strided((_span(tensor),), (1,))
                host = torch.empty(spanned.shape, dtype=tensor.dtype)
                host.copy_(spanned)
            waiting.tensor, waiting.version = host, tensor._version
            waiting.moved = weakref.ref(tensor), tensor.device, tensor.shape, tensor.stride()

    def unpack(self, waiting: Any) -> Tensor:
        self.flush()
        recorder, number = self.recorder, waiting.number
        if recorder is not None and number >= 0:
            recorder.group = recorder.packs[number].group
            recorder.unpacking(number)
        if waiting.moved is None:
            if waiting.tensor._version != waiting.version:
                raise modified(waiting.tensor, waiting.version)
            return waiting.tensor
        reference, device, shape, stride = waiting.moved
        origin = reference()
        if origin is not None and origin._version != waiting.version:
            raise modified(origin, waiting.version)
        with _paused(recorder), torch.no_grad():
            back = torch.empty(waiting.tensor.shape, dtype=waiting.tensor.dtype, device=device)
            back.copy_(waiting.tensor)
            back = back.as_strided(shape, stride)
        if recorder is not None and number >= 0:
            recorder.restored(number, back)
        self.counts.fetched += 1
        return back

    def seal(self) -> None:
        self.flush()
        self.state = State()


class _Waiting:
    """The handle that autograd holds for a tensor: the tensor until it was moved, then its copy and its device."""

    __slots__ = ("moved", "number", "tensor", "version")

    def __init__(self, number: int, tensor: Tensor) -> None:
        self.number, self.tensor, self.version = number, tensor, tensor._version
        self.moved: Any = None


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
