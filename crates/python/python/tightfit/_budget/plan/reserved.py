"""Predicts what PyTorch's allocator reserves for a step: more than is allocated, because of gaps between blocks
(``tightfit_core::eager``)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..memory.allocator import There
from .liveness import Lives, written

__all__ = ["Reserved", "reserved"]

# Another size of these, and of the pages by which the other segment grows: for tests of small steps.
SIZES: tuple[int, int] | None = None


class Reserved(NamedTuple):
    """What the allocator reserves for a step, in bytes, and the first operation at which that is more than was asked for; None if it never is."""

    bytes: int
    at: int | None


def reserved(lives: Lives, decisions: dict[int, dict[str, Any]], most: int | None = None, there: There = There()) -> Reserved:
    """What the allocator reserves for a step under decisions that can be carried out, and where that is more than `most`."""
    return Reserved(*lives.native.reserved(written(decisions), most, there.bytes, list(there.free), SIZES))
