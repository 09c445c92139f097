"""Decides for every movable tensor of a step whether it is kept, offloaded or recomputed.

The decisions are the joint planner's, or a greedy search's where these take less time in eager PyTorch. The greedy search looks at the operation that
needs most memory, and gives up the tensor that frees most bytes per added time, until the budget holds. The planner is mostly faster. The greedy
search serves deep networks with little memory, for which the planner has too little time
(``scripts/fit-planners.py``).
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

# How often the planner plans again, for less, where what it found needs more memory as it is carried out; all of these take as long as
# the first.
TRIES = 2
# How long the joint planner may search: for few values that can be given up, for more, and where it has found nothing near the best.
FEW = 600
FEW_SECONDS, PLAN_SECONDS, LONG_SECONDS = 1.0, 5.0, 15.0
# How long it may search in a hurry: for few values, and for more.
HURRIED_SECONDS = 0.3, 2.0
# The gap of a plan that a longer search cannot make much better. Where time was short, gaps are several times the step.
NEAR = 0.1
# After which the search for the least budget begins no further try: for few values, and for more.
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
        """The same of what carrying them out takes, where that is known better."""
        return outcome.time_us / self.bound_us - 1 if self.bound_us else None

    @property
    def is_far(self) -> bool:
        """Whether they may take much longer than the best decisions, because the search had too little time."""
        return self.gap is not None and self.gap > NEAR


def decide(step: dict[str, Any], budget: int, lives: Lives | None = None, hurried: bool = False) -> Decided:
    """Decisions under which the step needs at most `budget` bytes, at little added time; `hurried`, after one short search.

    If no decisions fit, the decisions that need least, with ``fits`` false.
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
        # A bound of all plans is one of the greedy search's plans.
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
    """How long the planner searches, and again where it found nothing near the best: large steps and busy hosts need longer."""
    longer = PLAN_SECONDS, LONG_SECONDS
    return by_size(((FEW_SECONDS, *longer), longer), lives)


def by_size(choices: tuple[T, T], lives: Lives) -> T:
    """The first where few values can be given up, else the second."""
    return choices[0] if sum(lives.movable) <= FEW else choices[1]


def by_planner(step: dict[str, Any], budget: int, lives: Lives, plain: Outcome, seconds: float) -> Decided | None:
    """The joint planner's decisions, or None if it finds no plan within the budget.

    Hooks rebuild from saved tensors alone, which may take more memory than the planner counts. It then plans again, for less by that difference.
    """
    found: Decided | None = None
    bound: float | None = None
    written, aim = json.dumps(step), budget
    for attempt in range(1 + TRIES):
        text = _native.plan_step(written, aim, seconds if attempt == 0 else seconds / TRIES)
        if text is None:
            break
        plan = json.loads(text)
        # A plan for less has a higher bound, which holds for less alone.
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
    """Makes reruns begin at tensors that autograd saves: hooks find no others, even where the program still holds them."""
    for tensor, decision in decisions.items():
        for entry in decision["rebuilt"]:
            if any(not lives.resident[leaf] and not lives.saved[leaf] for leaf in leaves(lives, entry["operations"])):
                entry["operations"] = closure(lives, tensor)


def decide_least(step: dict[str, Any], lives: Lives) -> Decided:
    """The decisions that need least among those that this search finds: by halving with short searches, then in steps with long searches. Less may be
    possible."""
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
    # A refused budget must not be one for which a long search finds a plan.
    while time.monotonic() < end:
        tried = decide(step, best.outcome.peak - max(1, best.outcome.peak // 128), lives)
        if not tried.fits:
            break
        best = tried
    return best
