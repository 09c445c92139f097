"""Decisions for which PyTorch's allocator has room, with the gaps between its blocks (``tightfit_core::eager``).

Gaps depend on all that is given up, in no simple way, so many decisions are tried, near those given and near plans for less memory.
"""

from __future__ import annotations

import json
from typing import Any

from ..memory.allocator import There
from . import reserved as predicted
from .decide import Decided, by_planner, by_size
from .liveness import Lives, written
from .reserved import reserved
from .simulate import simulate

__all__ = ["with_gaps"]

# How long the search takes at most for few values that can be given up, and for more.
SECONDS = 0.4, 2.0
# How much less than the budget plans have that the search begins with too, in percent, and seconds of the planner for each of them.
LESS, TRY_SECONDS = (10, 5), (0.1, 0.5)
# More than any device has.
ANY = 1 << 60


def with_gaps(
    step: dict[str, Any], budget: int, lives: Lives, decided: Decided, most: int | None, there: There = There(), hurried: bool = False
) -> Decided:
    """Decisions within the budget for which the allocator reserves at most so many bytes, at little added time; those given if no better
    ones are found. None for as many bytes as it likes. If none have room, of those that were tried, the ones for which it reserves least.
    `hurried`, after a short search."""
    bases = [decided]
    if not hurried and most is not None and reserved(lives, decided.decisions, most, there).at is not None:
        seconds = by_size(TRY_SECONDS, lives)
        plans = (by_planner(step, budget - budget * less // 100, lives, decided.plain, seconds) for less in LESS)
        bases += [plan for plan in plans if plan is not None]
    seconds = SECONDS[0] if hurried else by_size(SECONDS, lives)
    texts = [written(base.decisions) for base in bases]
    text = lives.native.with_room(texts, budget, ANY if most is None else most, there.bytes, list(there.free), predicted.SIZES, seconds)
    if text is None:
        return decided
    decisions = {decision["tensor"]: decision for decision in json.loads(text)}
    outcome = simulate(lives, decisions)
    return Decided(decisions, outcome, decided.plain, True, decided.by, decided.bound_us)
