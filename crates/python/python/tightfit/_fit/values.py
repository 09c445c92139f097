"""Whole numbers and truth values in a rehearsal: these are computed, where they are few.

Programs choose their way by token ids, masks, lengths and positions: `mask.all()`, `lengths.max().item()`. On fake tensors they could not, or
would choose otherwise. What is as large as activations is fake: floats, whatever they come from, and masks of that size.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

__all__ = ["Values", "has_values"]

# Larger tensors are fake.
LARGEST_BYTES = 16 << 20


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor of the program is one whose values a rehearsal has."""
    return type(tensor) is Tensor and not tensor.is_quantized and tensor.layout is torch.strided and _is_small(tensor)


class Values(TorchDispatchMode):
    """Computes operations on such tensors alone, while it is entered within a mode of fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        # Storages that are the rehearsal's own, weakly: it may write to them.
        self._own: dict[int, Any] = {}

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor of the program."""
        with unset_fake_temporarily():
            made = tensor.detach().clone()
        self._keep(made)
        return made

    def copy_buffers(self, model: nn.Module, copied: nn.Module) -> None:
        """Gives the copy of a model the values of its buffers."""
        made: dict[int, Tensor] = {}
        for one, other in zip(model.modules(), copied.modules(), strict=True):
            for name, buffer in one._buffers.items():
                if buffer is not None and has_values(buffer):
                    if id(buffer) not in made:
                        made[id(buffer)] = self.copy(buffer)
                    other._buffers[name] = made[id(buffer)]

    def owns(self, tensor: Tensor) -> bool:
        """Whether a tensor was made in the rehearsal."""
        place = self._own.get(tensor.untyped_storage()._cdata)
        return place is not None and place() is not None

    def _keep(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._own[storage._cdata] = weakref.ref(storage)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        is_random = torch.Tag.nondeterministic_seeded in function.tags
        if is_random or "empty" in function._schema.name or not all(map(has_values, tensors)):
            return function(*args, **kwargs)
        try:
            fake = function(*args, **kwargs)
        except Exception:
            # The answer, or its shape, is one of the values.
            if not tensors:
                raise
        else:
            results = [value for value in tree_flatten(fake)[0] if isinstance(value, Tensor)]
            if results and not any(map(_is_small, results)):
                return fake
        with unset_fake_temporarily():
            out = function(*args, **kwargs)
        known = {value.untyped_storage()._cdata for value in tensors}
        for value in tree_flatten(out)[0]:
            if isinstance(value, Tensor) and value.untyped_storage()._cdata not in known:
                self._keep(value)
        return out


def _is_small(tensor: Tensor) -> bool:
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.nbytes <= LARGEST_BYTES
