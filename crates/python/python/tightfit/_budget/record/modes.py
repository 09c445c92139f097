"""Operations that compute otherwise while a dispatch mode is on, such as a recorder: PyTorch then writes nothing in place and reads no values, so the
last bits are others. They run outside the recorder. ``tests_torch/test_fit_modes.py`` compares all of PyTorch's operations."""

from __future__ import annotations

import inspect
from typing import Any

from torch.nn import functional

__all__ = ["NODES", "is_otherwise"]

# Nodes of autograd's graph, without the number of their form.
NODES = frozenset({"CumprodBackward", "MaskedFillBackward", "ProdBackward"})
_PARAMETERS = inspect.signature(functional.cross_entropy)


def is_otherwise(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether this call computes otherwise: cross-entropy that smooths labels of weighted classes divides by another sum of weights."""
    if function is not functional.cross_entropy:
        return False
    given = _PARAMETERS.bind(*args, **(kwargs or {})).arguments
    return given.get("weight") is not None and given.get("label_smoothing", 0.0) != 0.0
