"""The parameters and buffers of the models of a pass. Autograd saves them and views of them, such as the transposed weight of a linear layer."""

from __future__ import annotations

import functools
from itertools import chain

from torch import Tensor, nn

from ..record.recorder import has_storage

__all__ = ["State"]


class State:
    """The storages that models hold. Offloading them frees nothing, and copies miss writes without versions, such as through ``.data``."""

    def __init__(self, *models: nn.Module) -> None:
        self._models = models

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor has the bytes of a parameter or a buffer."""
        base = tensor if tensor._base is None else tensor._base
        # A view's own node may not be there yet, and would be made.
        return base.grad_fn is None and base.untyped_storage()._cdata in self._storages

    @functools.cached_property
    def _storages(self) -> set[int]:
        values = chain.from_iterable(chain(model.parameters(), model.buffers()) for model in self._models)
        return {value.untyped_storage()._cdata for value in values if has_storage(value)}
