"""Decisions for which PyTorch's allocator has room, with the gaps between its blocks.

Gaps depend on all that is given up, in no simple way: giving up one more tensor may leave more of them. So many decisions are tried::

    close    give up what is alive where too much is reserved, until there is room; then keep again what leaves room. Starts from the
             decisions given, and from plans for less memory
    vary     change a tensor or two at random, and accept a slower step less and less often (simulated annealing)
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import Any

from .allocator import There, reserved
from .decide import Decided, Search, by_planner
from .rebuild import Impossible, Lives
from .simulate import Outcome, simulate

__all__ = ["with_gaps"]

# How long all of it takes with few turns, and after which part of that no further plan for less is tried.
SECONDS, CLOSING = 5.0, 0.4
# How often decisions are annealed, in turns those given and the best so far; and at most, while these take longer by more than a share.
TURNS, MOST_TURNS, NEAR = 4, 16, 0.03
# How much less than the budget such plans get, in percent, and seconds of the planner for each.
LESS, TRY_SECONDS = (10, 5, 2, 8), 0.5
# The annealing's first temperature, as a share of the step; and the time that bytes beyond the limits count as, in steps a budget.
WARMTH, WORTH = 6e-3, 3.0
# Tensors of less than this part of the budget are not varied.
PART = 2000


def with_gaps(
    step: dict[str, Any], budget: int, lives: Lives, decided: Decided, most: int, there: There = There(), seconds: float = SECONDS
) -> Decided:
    """Decisions within the budget for which the allocator reserves at most so many bytes, at little added time; those given if they are
    such. If none are found, of those that were tried, the ones for which it reserves least."""
    if reserved(lives, decided.outcome, most, there).at is None:
        return decided
    begun = time.monotonic()
    search = _Anneal(lives, budget, most, decided, there)
    for base in _bases(step, budget, lives, decided, begun + CLOSING * seconds):
        search.close(base, begun + CLOSING * seconds)
    each = max(0.0, begun + seconds - time.monotonic()) / TURNS
    for turn in range(MOST_TURNS):
        if turn >= TURNS and search.best.outcome.time_us <= (1 + NEAR) * decided.outcome.time_us:
            break
        search.vary(search.best if turn % 2 else decided, time.monotonic() + each)
    best = search.best
    if best is not decided and decided.gap is not None:
        # What bounds all plans bounds these.
        best.gap = (1 + decided.gap) * best.outcome.time_us / decided.outcome.time_us - 1
    return best


def _bases(step: dict[str, Any], budget: int, lives: Lives, decided: Decided, end: float) -> Iterator[Decided]:
    """Decisions to begin with."""
    yield decided
    for less in LESS:
        if time.monotonic() > end:
            return
        base = by_planner(step, budget - budget * less // 100, lives, decided.plain, TRY_SECONDS)
        if base is not None:
            yield base


class _Anneal(Search):
    """The greedy search and an annealing of its choices, for a budget and what may be reserved within it.

    Attributes
    ----------
    best, over
        Of all decisions within the budget that were tried, the fastest for which there is room, or else those for which least is
        missing; and how many bytes that are.
    """

    def __init__(self, lives: Lives, budget: int, most: int, decided: Decided, there: There) -> None:
        super().__init__(lives, budget)
        self.most, self.there = most, there
        self.plain = decided.plain
        self.best, self.over = decided, self._over(decided.outcome)
        self.chance = random.Random(0)

    def close(self, base: Decided, end: float) -> None:
        """Tries what is near these decisions, and has room."""
        self._keep(base.decisions, base.outcome, base.by)
        outcome = self._begin(base)
        refused: set[tuple[int, str]] = set()
        while outcome is not None and (at := self._exceeded(outcome)) is not None:
            picked = self.pick(at, 1, refused)
            if not picked or time.monotonic() > end:
                return
            self.choice.update(picked)
            tried = self._tried()
            if tried is None or tried.peak > max(self.budget, outcome.peak):
                for tensor, what in picked.items():
                    del self.choice[tensor]
                    refused.add((tensor, what))
            else:
                outcome = tried
        if outcome is not None:
            restored, decisions = self.restore(outcome, self.decisions())
            self._keep(decisions, restored, base.by)

    def vary(self, base: Decided, end: float) -> None:
        """Anneals these decisions for a while."""
        begun = time.monotonic()
        length = max(end - begun, 1e-9)
        outcome = self._begin(base)
        if outcome is None:
            return
        chance = self.chance
        known, worth = dict(self.choice), self._worth(outcome)
        large = [tensor for tensor in self.candidates if self.lives.bytes[tensor] * PART > self.budget]
        ways = {tensor: ("keep", "offload", "recompute") if self.cost(tensor) is not None else ("keep", "offload") for tensor in large}
        while large and (now := time.monotonic()) < end:
            self.choice = dict(known)
            for _ in range(chance.choice((1, 1, 2))):
                tensor = chance.choice(large if chance.random() < 0.5 else [one for one in known if one in ways] or large)
                before = self.choice.pop(tensor, "keep")
                what = chance.choice([way for way in ways[tensor] if way != before])
                if what != "keep":
                    self.choice[tensor] = what
            outcome = self._tried()
            warmth = WARMTH * self.plain.time_us * max(0.0, 1 - (now - begun) / length)
            allowed = worth - warmth * math.log(1 - chance.random())
            # What it reserves takes longest to find out.
            if outcome is None or outcome.host > self.host or outcome.time_us >= allowed:
                continue
            tried = self._worth(outcome)
            if tried < allowed:
                known, worth = dict(self.choice), tried
                # What it reserves is not asked again where it cannot be the best.
                if self.over or outcome.time_us < self.best.outcome.time_us:
                    self._keep(self.decisions(), outcome, base.by)

    def allows(self, outcome: Outcome) -> bool:
        return super().allows(outcome) and self._exceeded(outcome) is None

    def _begin(self, base: Decided) -> Outcome | None:
        self.choice = {tensor: decision["decision"] for tensor, decision in base.decisions.items()}
        return self._tried()

    def _tried(self) -> Outcome | None:
        """What the choices take; None if they cannot be carried out."""
        try:
            return simulate(self.lives, self.decisions())
        except Impossible:
            return None

    def _keep(self, decisions: dict[int, dict[str, Any]], outcome: Outcome, by: str) -> None:
        """Remembers decisions if they are the best so far."""
        if not super().allows(outcome):
            return
        over = self._over(outcome)
        if (over, outcome.time_us) < (self.over, self.best.outcome.time_us):
            self.best, self.over = Decided(decisions, outcome, self.plain, True, by), over

    def _exceeded(self, outcome: Outcome) -> int | None:
        """The operation at which a step needs too much; None if it does nowhere."""
        return outcome.at if outcome.peak > self.budget else reserved(self.lives, outcome, self.most, self.there).at

    def _over(self, outcome: Outcome) -> int:
        """Bytes that are reserved beyond what may be."""
        return max(0, reserved(self.lives, outcome, None, self.there).bytes - self.most)

    def _worth(self, outcome: Outcome) -> float:
        """Time of a step, and more for what it needs beyond what there is."""
        over = max(0, outcome.peak - self.budget) + self._over(outcome)
        return outcome.time_us + WORTH * self.plain.time_us * over / self.budget
