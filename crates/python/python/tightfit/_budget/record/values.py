"""Computes small tensors of integers and booleans in a rehearsal.

Programs branch on token ids, masks, lengths and positions: `mask.all()`, `lengths.max().item()`. On fake tensors, such a branch fails or goes
another way. All floats are fake, and so are masks of the size of activations.
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
    """Whether a tensor of the program keeps its values in a rehearsal."""
    return type(tensor) is Tensor and not tensor.is_quantized and tensor.layout is torch.strided and _is_small(tensor)


class Values(TorchDispatchMode):
    """Runs operations on such tensors for real. It is entered inside a fake tensor mode."""

    def __init__(self) -> None:
        super().__init__()
        # Weak references to storages that the rehearsal made and may write to.
        self._own: dict[int, Any] = {}

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor of the program."""
        with unset_fake_temporarily():
            made = tensor.detach().clone()
        self._keep(made)
        return made

    def copy_buffers(self, model: nn.Module, copied: nn.Module) -> None:
        """Copies the values of a model's buffers to the copy of the model."""
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
            # The result or its shape depends on values.
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
