"""Predicts the bytes that PyTorch's allocator reserves for a step, including gaps between blocks, and finds decisions for which it has room
(``tightfit_plan::eager``).

Gaps depend on all decisions, in no simple way. So the search tries many decisions, near the given ones and near plans for less memory.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..memory.reservation import InitialReservation
from .decide import Decided, by_planner, by_size
from .liveness import Lives, written
from .simulate import simulate

__all__ = ["Reserved", "reserved", "with_gaps"]

# Other sizes of segments and of the pages by which a segment grows, for tests of small steps.
SIZES: tuple[int, int] | None = None


# The time limits of the search in seconds: for few movable values, and for many.
SECONDS = 0.4, 2.0
# The search also starts from plans for budgets that are smaller by these percentages. The planner has these seconds for each.
LESS, TRY_SECONDS = (10, 5), (0.1, 0.5)
# More bytes than any device has.
ANY = 1 << 60


class Reserved(NamedTuple):
    """The bytes that the allocator reserves for a step, and the first operation at which they are more than the limit, or None."""

    bytes: int
    at: int | None


def reserved(lives: Lives, decisions: dict[int, dict[str, Any]], most: int | None = None, there: InitialReservation = InitialReservation()) -> Reserved:
    """Predicts the bytes that the allocator reserves for a step under decisions, and the first operation at which they exceed `most`."""
    return Reserved(*lives.native.reserved(written(decisions), most, there.bytes, list(there.free), SIZES))


def with_gaps(
    step: dict[str, Any], budget: int, lives: Lives, decided: Decided, most: int | None, there: InitialReservation = InitialReservation(), hurried: bool = False
) -> Decided:
    """Finds decisions within the budget, with little added time, for which the allocator reserves at most `most` bytes; None is no limit. If none are
    found, it returns the decisions that reserve the fewest bytes. If `hurried`, the search is short."""
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
