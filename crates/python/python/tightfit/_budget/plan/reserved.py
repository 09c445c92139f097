"""The bytes that PyTorch's allocator reserves for a step, more than it allocates because of gaps between blocks, and decisions for which it has
room (``tightfit_core::eager``).

Gaps depend on all decisions, in no simple way. So the search tries many decisions, near the given ones and near plans for less memory.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..memory.allocator import There
from .decide import Decided, by_planner, by_size
from .liveness import Lives, written
from .simulate import simulate

__all__ = ["Reserved", "reserved", "with_gaps"]

# Another size of these, and of the pages by which the other segment grows: for tests of small steps.
SIZES: tuple[int, int] | None = None


# The most seconds of the search, for few values that can be given up and for more.
SECONDS = 0.4, 2.0
# The search also begins with plans for less than the budget, by these percents. The planner has these seconds for each.
LESS, TRY_SECONDS = (10, 5), (0.1, 0.5)
# More than any device has.
ANY = 1 << 60


class Reserved(NamedTuple):
    """The bytes that the allocator reserves for a step, and the first operation at which they are more than the limit, or None."""

    bytes: int
    at: int | None


def reserved(lives: Lives, decisions: dict[int, dict[str, Any]], most: int | None = None, there: There = There()) -> Reserved:
    """The bytes that the allocator reserves for a step under decisions that can be carried out, and where they are more than `most`."""
    return Reserved(*lives.native.reserved(written(decisions), most, there.bytes, list(there.free), SIZES))


def with_gaps(
    step: dict[str, Any], budget: int, lives: Lives, decided: Decided, most: int | None, there: There = There(), hurried: bool = False
) -> Decided:
    """Decisions within the budget for which the allocator reserves at most `most` bytes, or any number if that is None, at little added time. If no
    decisions have enough room, the ones that reserve least. `hurried` stands for a short search."""
    bases = [decided]
    if not hurried and most is not None and reserved(lives, decided.decisions, most, there).at is not None:
        seconds = by_size(TRY_SECONDS, lives)
        plans = (by_planner(step, budget - budget * less // 100, lives, decided.plain, seconds) for less in LESS)
        bases += [plan for plan in plans if plan is not None]
    seconds = SECONDS[0] if hurried else by_size(SECONDS, lives)
    texts = [written(base.decisions) for base in bases]
    text = lives.native.with_room(texts, budget, ANY if most is None else most, there.bytes, list(there.free), SIZES, seconds)
    if text is None:
        return decided
    decisions = {decision["tensor"]: decision for decision in json.loads(text)}
    outcome = simulate(lives, decisions)
    return Decided(decisions, outcome, decided.plain, True, decided.by, decided.bound_us)
