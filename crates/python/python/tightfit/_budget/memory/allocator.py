"""PyTorch's allocator: sizes of its blocks, and the bytes that it has reserved before a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ROUND", "SMALL", "There"]

ROUND = 512
# Blocks up to this size are in segments of their own, of which gaps count as none.
SMALL = 1 << 20


class There(NamedTuple):
    """What the allocator has reserved before a step, in segments for large blocks that do not grow: bytes, and its free blocks. What stays
    from step to step is in these, as far as it is there."""

    bytes: int = 0
    free: Sequence[int] = ()
