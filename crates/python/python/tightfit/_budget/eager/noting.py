"""Notes the calls that a pass makes, so that they can run again with the very arguments that they had.

A function mode sees each call of a function of PyTorch. A call is noted as a function and where its arguments come from::

    x = conv(image)        image: large, and saved by autograd        x: output 0 of call 1
    y = relu(x)            x: output 0 of call 1                      y: output 0 of call 2
    z = linear(y, w, b)    w: large, and saved; b: small, a copy      z: output 0 of call 3

Nothing is taken from another pass: the numbers, views and branches of a call are its own. A note holds no large tensor that autograd would
not hold. It lives as long as a saved tensor that was given up needs it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._native import Held, Notes
from ..record.functions import OPENED, opened
from ..record.marks import Parts
from ..record.transforms import is_inside
from .slots import copy_of

__all__ = ["Noting"]

_is_compiling = torch.compiler.is_compiling


class Noting(Notes, Parts):
    """Notes the calls of one pass while it is entered. The notes and the common path are native; rare cases are here."""

    def __init__(self, kinds: dict[Any, int], active: Any, device: torch.device) -> None:
        super().__init__()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A compiler traces this function, and cannot trace a native function.
        if _is_compiling() or is_inside():
            return function(*args, **kwargs) if kwargs else function(*args)
        return self.note(function, args, kwargs)

    def _has_stale_casts(self, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether autocast may use a cast of a parameter that it made before the parameter was written."""
        if not torch.is_autocast_enabled(self.kind):
            return False
        stale = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor) and value.is_leaf and value.requires_grad and value.dtype is torch.float32:
                version, active = value._version, self.active
                stale |= active.cast_before.get(id(value), version) != version or active.cast_now.setdefault(id(value), version) != version
        return stale

    def _special(self, function: Any, flags: int, args: Any, kwargs: Any) -> Any:
        if flags == OPENED:
            body = opened(function)
            with self:
                return body(*args, **kwargs)  # type: ignore[misc]
        if args and isinstance(args[0], Tensor) and args[0].layout is torch.strided:
            self._is_written_unseen(args[0])
        return function(*args, **kwargs)

    def _is_written_unseen(self, tensor: Tensor) -> None:
        """A program takes a tensor's `.data`: what it writes there changes no version. Notes keep the bytes as they were; what autograd has
        saved shows the writes, as in plain PyTorch."""
        storage = tensor.untyped_storage()._cdata
        for ref in self.take(storage):
            origin = ref.tensor()
            is_copy = type(ref) is Held and ref.is_copy
            if origin is not None and not is_copy and (ref.base is not None or ref.found() is not None):
                ref.hold(copy_of(origin.detach()))
        self.active.unseen.add(storage)
        self.active.keep_storage(storage)

    def _generators(self) -> Any:
        if self.kind == "cuda":
            return torch.cuda.default_generators[self.device.index or 0].get_offset(), None
        return 0, torch.get_rng_state()

    def _has_drawn(self, before: Any) -> bool:
        offset, state = self._generators()
        return bool(offset != before[0] or state is not None and not torch.equal(state, before[1]))

    @staticmethod
    def is_cast(saved: Tensor, weight: Tensor) -> int:
        """Whether a saved tensor is a weight that autocast has cast: 1 if it is, -1 if transposed, else 0."""
        if saved.numel() != weight.numel():
            return 0
        node, transposed = saved.grad_fn, False
        if node is not None and node.name() == "TBackward0":
            node, transposed = node.next_functions[0][0], True
        if node is None or node.name() != "ToCopyBackward0":
            return 0
        before = node.next_functions[0][0]
        if before is None or getattr(before, "variable", None) is not weight:
            return 0
        return -1 if transposed else 1
