"""Function modes that assign each recorded operation to a call of a PyTorch function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from .functions import CASTING, Marked, is_in_place, opened
from .modes import is_otherwise
from .recorder import HIDDEN, Recorder
from .transforms import is_inside

__all__ = ["Marks", "Parts", "active_modes", "alone", "is_alone", "is_small", "take_away", "without"]

# A noted call first copies small tensors that no noted call made, so that later writes to them do no harm. These are the largest sizes: of vectors,
# such as biases, and of other tensors.
VECTOR_BYTES, SMALL_BYTES = 1 << 20, 64 << 10
_grads = torch.is_grad_enabled


class Parts(TorchFunctionMode):
    """A function mode that sees the inner calls of functions whose parts are rerun separately."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError

    def cast(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Casts the arguments of a call as autocast would, and notes each cast as a call. Trained parameters are left to autocast, which caches their
        casts."""
        for value in args:
            if isinstance(value, Tensor) and value.dtype is torch.float32:
                break
        else:
            return args
        kind = value.device.type
        # Models on "meta" can be planned, but PyTorch has no autocast for that device.
        if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
            return args
        dtype = torch.get_autocast_dtype(kind)
        return tuple(
            self.__torch_function__(Tensor.to, (), (one, dtype)) if _is_cast_alone(one, kind) else one for one in args
        )


def _is_cast_alone(value: Any, kind: str) -> bool:
    """Whether autocast casts a tensor again at each use."""
    if not isinstance(value, Tensor) or value.dtype is not torch.float32 or value.device.type != kind:
        return False
    if value.is_leaf:
        return not value.requires_grad
    # A rehearsal computes on fake tensors.
    return type(value) in (Tensor, FakeTensor)


class Marks(Parts):
    """Marks in a recorder the function call that each operation belongs to."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self.recorder
        if not _grads() or recorder.paused or is_inside():
            return function(*args, **(kwargs or {}))
        body = opened(function)
        if body is not None:
            with self:
                return body(*args, **(kwargs or {}))
        if is_otherwise(function, args, kwargs) and recorder.innermost():
            inputs = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
            return recorder.outside(inputs, lambda: function(*args, **(kwargs or {})), HIDDEN)
        if function in CASTING:
            args = self.cast(args)
        target = None
        if is_in_place(function, kwargs) and args and isinstance(args[0], Tensor) and args[0].layout is torch.strided:
            target = recorder.storage(args[0]).number
        before, recorder.current = recorder.current, len(recorder.marked)
        recorder.marked.append(Marked(function, target))
        try:
            out = function(*args, **(kwargs or {}))
        finally:
            recorder.current = before
        recorder.returned_from(out)
        return out


def is_small(dimensions: int, size: int, is_leaf: bool) -> bool:
    """Whether a noted call copies a tensor of this size that no noted call made. A tensor that the program computed is copied only if it is tiny."""
    if not is_leaf:
        return size <= 256
    return size <= (VECTOR_BYTES if dimensions < 2 else SMALL_BYTES)


def is_alone() -> bool:
    """Whether no function mode of the program is on: such a mode may change the results of calls. Modes of devices only choose where tensors are made."""
    return all(isinstance(mode, Parts | DeviceContext) for mode in active_modes())


@contextmanager
def alone() -> Iterator[None]:
    """Takes the program's modes away, for calls that run again."""
    with ExitStack() as stack:
        if not is_alone():
            stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        yield


def active_modes() -> list[Any]:
    """The function modes of this thread, the outermost first."""
    return [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]


def take_away(mode: TorchFunctionMode) -> None:
    """Takes a mode away, wherever it is among other modes."""
    others: list[Any] = []
    while any(other is mode for other in active_modes()):
        top = torch._C._pop_torch_function_stack()
        if top is not mode:
            others.append(top)
    for other in reversed(others):
        torch._C._push_on_torch_function_stack(other)


@contextmanager
def without(mode: TorchFunctionMode | None) -> Iterator[None]:
    """Takes a mode away while this is entered, if it is active."""
    is_active = mode is not None and any(other is mode for other in active_modes())
    if mode is not None and is_active:
        take_away(mode)
    try:
        yield
    finally:
        if is_active:
            torch._C._push_on_torch_function_stack(mode)
