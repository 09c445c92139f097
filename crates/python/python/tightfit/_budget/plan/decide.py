"""Decides for every movable tensor of a step whether it is kept, offloaded or recomputed.

Two searches propose decisions, the joint planner and a greedy search. The proposal that takes less time in eager PyTorch wins. The greedy search
looks at the operation with the most bytes and evicts the tensor that frees the most bytes per added time, until the budget holds. The planner
usually finds the faster plan. The greedy search is for deep networks in little memory, where the planner runs out of time.
"""

from __future__ import annotations

import json
import time
from typing import Any, TypeVar

from ... import _native
from .liveness import Impossible, Lives, closure, leaves
from .simulate import Outcome, outcome_of, simulate

__all__ = ["Decided", "by_greedy", "by_planner", "by_size", "decide", "decide_least"]

T = TypeVar("T")

# The planner's further attempts with a smaller budget, if hooks need more memory for its plan than it predicted. All of them together take as long
# as the first attempt.
TRIES = 2
# The time limits of the joint planner: for few movable values, for many, and for a second search if the first found nothing near the best.
FEW_VALUES = 600
FEW_SECONDS, PLAN_SECONDS, LONG_SECONDS = 1.0, 5.0, 15.0
# The time limits of a short search: for few values, and for many.
HURRIED_SECONDS = 0.3, 2.0
# A plan with at most this gap gains little from a longer search. If the search ran out of time, gaps are several times the step.
SMALL_GAP = 0.1
# After this time, the search for the least budget starts no further attempt: for few values, and for many.
LEAST_SECONDS = 15.0, 30.0


class Decided:
    """Decisions, and their costs.

    Attributes
    ----------
    decisions
        By tensor, in the form of a plan file.
    outcome
        The memory and time of carrying them out.
    plain
        The memory and time of keeping everything.
    fits
        Whether the budget holds.
    by
        The search that found them: ``"planner"`` or ``"greedy"``.
    bound_us
        The planner's bound, below which no plan of the step is possible, or None.
    """

    def __init__(
        self,
        decisions: dict[int, dict[str, Any]],
        outcome: Outcome,
        plain: Outcome,
        fits: bool,
        by: str = "greedy",
        bound_us: float | None = None,
    ) -> None:
        self.decisions = decisions
        self.outcome = outcome
        self.plain = plain
        self.fits = fits
        self.by = by
        self.bound_us = bound_us

    @property
    def gap(self) -> float | None:
        """The difference of their time from the bound, as a share of the bound, or None without a bound."""
        return self.gap_of(self.outcome)

    def gap_of(self, outcome: Outcome) -> float | None:
        """The gap of another outcome of these decisions, for example a more exact one."""
        return outcome.time_us / self.bound_us - 1 if self.bound_us else None

    @property
    def is_far(self) -> bool:
        """Whether they may take much longer than the best decisions, because the search had too little time."""
        return self.gap is not None and self.gap > SMALL_GAP


def decide(step: dict[str, Any], budget: int, lives: Lives | None = None, hurried: bool = False) -> Decided:
    """Finds decisions under which the step needs at most `budget` bytes, with little added time. If `hurried`, there is only one short search.

    If no decisions fit, it returns the decisions with the lowest peak, with ``fits`` false.
    """
    lives = lives or Lives(step)
    best = greedy = by_greedy(lives, budget)
    if not greedy.decisions:
        return greedy
    for seconds in (by_size(HURRIED_SECONDS, lives),) if hurried else _searches(lives):
        if seconds == LONG_SECONDS and (best is greedy or not best.is_far):
            break
        tried = by_planner(step, budget, lives, greedy.plain, seconds)
        if tried is None:
            continue
        # A bound on all plans also bounds the plans of the greedy search.
        greedy.bound_us = max(greedy.bound_us or 0.0, tried.bound_us or 0.0) or None
        if not tried.fits:
            continue
        if not best.fits or tried.outcome.time_us < best.outcome.time_us:
            best = tried
        if tried.gap is not None and not tried.is_far:
            break
    return best


def by_greedy(lives: Lives, budget: int) -> Decided:
    """The decisions of a greedy search. If it finds none within the budget, it returns the decisions that need least."""
    text, values = lives.native.greedy(budget)
    outcome = outcome_of(values)
    return Decided({decision["tensor"]: decision for decision in json.loads(text)}, outcome, simulate(lives, {}), outcome.peak <= budget)


def _searches(lives: Lives) -> tuple[float, ...]:
    """The time limits of the planner's attempts. Each next one is used if the one before found nothing near the best, as on busy hosts."""
    longer = PLAN_SECONDS, LONG_SECONDS
    return by_size(((FEW_SECONDS, *longer), longer), lives)


def by_size(choices: tuple[T, T], lives: Lives) -> T:
    """The first choice if few values are movable, else the second."""
    return choices[0] if sum(lives.movable) <= FEW_VALUES else choices[1]


def by_planner(step: dict[str, Any], budget: int, lives: Lives, plain: Outcome, seconds: float) -> Decided | None:
    """The joint planner's decisions, or None if it finds no plan within the budget.

    Hooks recompute from saved tensors only, which may need more memory than the planner predicts. The planner then runs again, with a budget that is
    smaller by the difference.
    """
    found: Decided | None = None
    bound: float | None = None
    written, aim = json.dumps(step), budget
    for attempt in range(1 + TRIES):
        text = _native.plan_step(written, aim, seconds if attempt == 0 else seconds / TRIES)
        if text is None:
            break
        plan = json.loads(text)
        # The bound for a smaller budget is higher, and holds only for that budget.
        bound = plan.get("bound_us") if attempt == 0 else bound
        tried = _carried_out(step, budget, lives, plain, plan, bound)
        if tried is None:
            break
        found = tried
        aim -= found.outcome.peak - budget
        if found.outcome.peak <= budget or aim <= 0:
            break
    return found


def _carried_out(
    step: dict[str, Any], budget: int, lives: Lives, plain: Outcome, plan: dict[str, Any], bound: float | None
) -> Decided | None:
    """A plan's decisions in the form for hooks, or None if hooks cannot carry them out."""
    decisions = {}
    for decision in plan["tensors"]:
        tensor = decision["tensor"]
        # A tensor that is copied out and never fetched has not left the device.
        if decision["decision"] == "keep" or decision["decision"] == "offload" and decision["prefetch_before"] is None:
            continue
        if decision["release_after"] is None:
            decision["release_after"] = lives.last_forward[tensor]
        decisions[tensor] = decision
    try:
        _through_saved(lives, decisions)
        outcome = simulate(lives, decisions)
    except Impossible:
        return None
    host = step["machine"]["host_bytes"]
    fits = outcome.peak <= budget and (host is None or outcome.host <= host)
    return Decided(decisions, outcome, plain, fits, "planner", bound)


def _through_saved(lives: Lives, decisions: dict[int, dict[str, Any]]) -> None:
    """Makes reruns begin at tensors that autograd saves. Hooks see only these, even if the program still holds others."""
    for tensor, decision in decisions.items():
        for entry in decision["rebuilt"]:
            if any(not lives.resident[leaf] and not lives.saved[leaf] for leaf in leaves(lives, entry["operations"])):
                entry["operations"] = closure(lives, tensor)


def decide_least(step: dict[str, Any], lives: Lives) -> Decided:
    """Finds decisions with a low peak: first by bisection with short searches, then in small steps with long ones. A lower peak may exist."""
    end = time.monotonic() + by_size(LEAST_SECONDS, lives)
    best = decide(step, 1, lives, hurried=True)
    low = sum(size for size, resident in zip(lives.bytes, lives.resident, strict=True) if resident)
    while best.outcome.peak - low > max(1, best.outcome.peak // 128) and time.monotonic() < end:
        budget = (low + best.outcome.peak) // 2
        tried = decide(step, budget, lives, hurried=True)
        if tried.fits:
            best = tried
        else:
            low = budget
    # If a long search finds a plan for a budget, that budget must not be refused.
    while time.monotonic() < end:
        tried = decide(step, best.outcome.peak - max(1, best.outcome.peak // 128), lives)
        if not tried.fits:
            break
        best = tried
    return best
