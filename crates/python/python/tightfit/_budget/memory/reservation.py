"""The bytes that PyTorch's allocator holds before a step, as data that needs no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["InitialReservation"]


class InitialReservation(NamedTuple):
    """The bytes that the allocator has reserved before a step, in segments for large blocks that do not grow, and its free blocks there. Tensors that
    stay from step to step are in these segments."""

    bytes: int = 0
    free: Sequence[int] = ()
