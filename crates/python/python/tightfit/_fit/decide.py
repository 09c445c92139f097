"""Decides for every movable tensor of a step whether it is kept, offloaded or recomputed.

The joint planner's decisions, or those of a greedy search where these take less time as eager PyTorch carries them out: at
the operation that needs most, give up what frees most bytes per added time, until the budget holds. The planner is faster mostly; the
greedy search is where little memory is left to deep networks, for which the planner has too little time
(``scripts/fit-planners.py``).
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Any

from tightfit import _native

from .rebuild import Impossible, Lives, leaves
from .simulate import Outcome, simulate

__all__ = ["Decided", "Search", "by_planner", "decide", "decide_least"]

# The longest rerun of one tensor, in operations.
LONGEST = 40
IMPROVE_SECONDS = 1.0
# How often the planner plans again, for less, where what it found needs more memory as it is carried out; all of these take as long as
# the first.
TRIES = 2
# How long the joint planner may search: for few values that can be given up, for more, and where it has found nothing near the best.
FEW = 600
FEW_SECONDS, PLAN_SECONDS, LONG_SECONDS = 1.0, 5.0, 15.0
# The gap of a plan that a longer search cannot make much better. Where time was short, gaps are several times the step.
NEAR = 0.1
# After which the search for the least budget begins no further try.
LEAST_SECONDS = 15.0


class Decided:
    """Decisions, and what they take.

    Attributes
    ----------
    decisions
        By tensor, in the form of a plan file.
    outcome
        What carrying them out takes.
    plain
        What keeping everything takes.
    fits
        Whether the budget holds.
    by
        What found them: ``"planner"`` or ``"greedy"``.
    gap
        How far the planner's time is above its bound at most, as a share; None where that is unknown.
    """

    def __init__(
        self,
        decisions: dict[int, dict[str, Any]],
        outcome: Outcome,
        plain: Outcome,
        fits: bool,
        by: str = "greedy",
        gap: float | None = None,
    ) -> None:
        self.decisions = decisions
        self.outcome = outcome
        self.plain = plain
        self.fits = fits
        self.by = by
        self.gap = gap

    @property
    def is_far(self) -> bool:
        """Whether they may take much longer than the best: those of a search that had too little time take several times as long."""
        return self.gap is not None and self.gap > NEAR


def decide(step: dict[str, Any], budget: int, lives: Lives | None = None, hurried: bool = False) -> Decided:
    """Decisions under which the step needs at most `budget` bytes, at little added time; `hurried`, after one short search.

    If none are found, those that need least, with ``fits`` false.
    """
    lives = lives or Lives(step)
    best = greedy = Search(lives, budget).run()
    if not greedy.decisions:
        return greedy
    for seconds in (FEW_SECONDS,) if hurried else _searches(lives):
        if seconds == LONG_SECONDS and not best.is_far:
            break
        tried = by_planner(step, budget, lives, greedy.plain, seconds)
        if tried is None or not tried.fits:
            continue
        if not best.fits or tried.outcome.time_us < best.outcome.time_us:
            best = tried
        if tried.gap is not None and not tried.is_far:
            break
    return best


def _searches(lives: Lives) -> tuple[float, ...]:
    """How long the planner searches, and again where it found nothing near the best: large steps and busy hosts need longer."""
    longer = PLAN_SECONDS, LONG_SECONDS
    return longer if sum(lives.movable) > FEW else (FEW_SECONDS, *longer)


def by_planner(step: dict[str, Any], budget: int, lives: Lives, plain: Outcome, seconds: float) -> Decided | None:
    """The joint planner's decisions; None if it finds no plan within the budget.

    Hooks rebuild from saved tensors alone, which may take more memory than the planner counts. It then plans again, for so much less.
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
    """A plan's decisions as hooks carry them out; None if they cannot."""
    decisions = {}
    for decision in plan["tensors"]:
        tensor = decision["tensor"]
        # What is copied out and never fetched has not left the device.
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
    gap = plan["step_time_us"] / bound - 1 if bound else None
    return Decided(decisions, outcome, plain, fits, "planner", gap)


def _through_saved(lives: Lives, decisions: dict[int, dict[str, Any]]) -> None:
    """Makes reruns begin at tensors that autograd saves: hooks find no others, even where the program still holds them."""
    for tensor, decision in decisions.items():
        for entry in decision["rebuilt"]:
            if any(not lives.resident[leaf] and not lives.saved[leaf] for leaf in leaves(lives, entry["operations"])):
                entry["operations"] = closure(lives, tensor)


def decide_least(step: dict[str, Any], lives: Lives) -> Decided:
    """The decisions that need least of those that this search finds, by halving with short searches, then in steps with long ones; less
    may be possible."""
    end = time.monotonic() + LEAST_SECONDS
    best = decide(step, 1, lives, hurried=True)
    low = sum(size for size, resident in zip(lives.bytes, lives.resident, strict=True) if resident)
    while best.outcome.peak - low > max(1, best.outcome.peak // 128) and time.monotonic() < end:
        budget = (low + best.outcome.peak) // 2
        tried = decide(step, budget, lives, hurried=True)
        if tried.fits:
            best = tried
        else:
            low = budget
    # What is refused must not be what a long search finds.
    while time.monotonic() < end:
        tried = decide(step, best.outcome.peak - max(1, best.outcome.peak // 128), lives)
        if not tried.fits:
            break
        best = tried
    return best


def closure(lives: Lives, tensor: int) -> list[int]:
    """The operations that make a tensor from others that are saved, or resident.

    Raises
    ------
    Impossible
        If one of them may not run again, or they are too many.
    """
    needed: set[int] = set()
    done: set[int] = set()
    queue = [tensor]
    while queue:
        wanted = queue.pop()
        if wanted in done:
            continue
        done.add(wanted)
        if not lives.writers[wanted]:
            raise Impossible(f"nothing makes tensor {wanted}")
        for index in lives.writers[wanted]:
            if index in needed:
                continue
            operation = lives.operations[index]
            if operation["rerun"] == "never":
                raise Impossible(f"operation {index} may not run again")
            needed.add(index)
            if len(needed) > LONGEST:
                raise Impossible("too long")
            for read in (*operation["reads"], *operation["adds"]):
                # A saved tensor is there, or is made again by a rerun of its own.
                if not lives.resident[read] and (read == tensor or not lives.saved[read]):
                    queue.append(read)
    return sorted(needed)


class Search:
    """The greedy search.

    Attributes
    ----------
    choice
        What becomes of each tensor that is given up: ``"offload"`` or ``"recompute"``.
    candidates
        Tensors that may be given up.
    """

    def __init__(self, lives: Lives, budget: int) -> None:
        self.lives = lives
        self.budget = budget
        self.choice: dict[int, str] = {}
        self.candidates = [
            tensor
            for tensor in range(len(lives.tensors))
            if lives.movable[tensor] and lives.saved[tensor] and lives.first_backward[tensor] > lives.last_forward[tensor]
        ]
        names = [operation["name"] for operation in lives.operations]
        # All that hooks see of a step.
        self.packs = [index for index in range(lives.turn) if names[index] == "pack"]
        self.unpacks = [index for index in range(lives.turn, len(names)) if names[index] == "unpack"]
        machine = lives.data["machine"]
        self.link = min(machine["to_host_bytes_per_s"], machine["to_device_bytes_per_s"]) / 1e6
        # When each operation begins.
        self.begins = [0.0, *accumulate(lives.time_us)]
        self.hidden = 0.8 * self.begins[lives.turn] * self.link
        host = machine.get("host_bytes")
        self.host = float("inf") if host is None else float(host)

    def run(self) -> Decided:
        """Gives up what frees most for its time where most is needed, until the budget holds."""
        plain = simulate(self.lives, {})
        best, best_decisions, best_choice = plain, {}, {}
        outcome = plain
        refused: set[tuple[int, str]] = set()
        while outcome.peak > self.budget:
            picked = self.pick(outcome.at, outcome.live[outcome.at] - self.budget, refused)
            if not picked:
                break
            self.choice.update(picked)
            decisions = self.decisions()
            tried = simulate(self.lives, decisions)
            if tried.live[outcome.at] >= outcome.live[outcome.at]:
                # Giving these up frees nothing where it is needed.
                for tensor, what in picked.items():
                    del self.choice[tensor]
                    refused.add((tensor, what))
                continue
            outcome = tried
            if outcome.peak < best.peak:
                best, best_decisions, best_choice = outcome, decisions, dict(self.choice)
        if best.peak <= self.budget:
            self.choice = best_choice
            best, best_decisions = self.restore(best, best_decisions)
        return Decided(best_decisions, best, plain, best.peak <= self.budget)

    def allows(self, outcome: Outcome) -> bool:
        """Whether there is memory for this, on the device and on the host."""
        return outcome.peak <= self.budget and outcome.host <= self.host

    def pick(self, at: int, excess: int, refused: set[tuple[int, str]]) -> dict[int, str]:
        """What to give up next at an operation that needs so many bytes too many."""
        lives = self.lives
        moved = sum(lives.bytes[tensor] for tensor, what in self.choice.items() if what == "offload")
        found = []
        for tensor in self.candidates:
            if tensor in self.choice or not lives.last_forward[tensor] < at < lives.first_backward[tensor]:
                continue
            size = lives.bytes[tensor]
            options = []
            if (cost := self.cost(tensor)) is not None and (tensor, "recompute") not in refused:
                options.append((cost, "recompute"))
            if (tensor, "offload") not in refused and moved + size <= self.host:
                options.append((size / self.link * (0.15 if moved + size < self.hidden else 2.0), "offload"))
            if options:
                cost, what = min(options)
                found.append((cost / size, tensor, what))
        found.sort()
        picked: dict[int, str] = {}
        for _, tensor, what in found:
            if what == "offload":
                if moved + lives.bytes[tensor] > self.host:
                    continue
                moved += lives.bytes[tensor]
            picked[tensor] = what
            excess -= lives.bytes[tensor]
            # A few at a time, since each changes what the others cost.
            if excess <= 0 or len(picked) >= 8:
                break
        return picked

    def cost(self, tensor: int) -> float | None:
        """Time to rebuild a tensor from what is now on the device; None if it cannot be."""
        try:
            operations = closure(self.lives, tensor)
        except Impossible:
            return None
        return sum(self.lives.rerun_us[index] for index in operations)

    def decisions(self) -> dict[int, dict[str, Any]]:
        """The choices in the form of a plan file."""
        lives = self.lives
        found: dict[int, dict[str, Any]] = {}
        first_need = self.needs()
        for tensor, what in self.choice.items():
            if what == "recompute":
                entry = {"before": first_need[tensor], "operations": closure(lives, tensor)}
                found[tensor] = {
                    "tensor": tensor,
                    "decision": "recompute",
                    "offload_after": None,
                    "release_after": lives.last_forward[tensor],
                    "prefetch_before": None,
                    "rebuilt": [entry],
                }
        self.transfers(found, first_need)
        return found

    def needs(self) -> dict[int, int]:
        """The operation that first needs each tensor in the backward pass, counting reruns of others."""
        lives = self.lives
        need = {tensor: lives.first_backward[tensor] for tensor in self.candidates}
        # Later tensors are rebuilt earlier; what their reruns read is needed then.
        for tensor in sorted(self.choice, key=lambda tensor: lives.first[tensor], reverse=True):
            if self.choice[tensor] != "recompute":
                continue
            for index in closure(self.lives, tensor):
                for read in lives.operations[index]["reads"]:
                    if read in need and read != tensor:
                        need[read] = min(need[read], need[tensor])
        return need

    def transfers(self, found: dict[int, dict[str, Any]], need: dict[int, int]) -> None:
        """Times of copies: out at once, one after another; in as late as one after another allows. Hooks let go of what was copied out when
        they see the next pack, and fetch when they see an unpack."""
        lives, begins = self.lives, self.begins
        moved = [tensor for tensor, what in self.choice.items() if what == "offload"]
        packed: dict[int, int] = {}
        for index in self.packs:
            packed.setdefault(lives.operations[index]["reads"][0], index)
        free = 0.0
        for tensor in sorted(moved, key=lambda tensor: packed[tensor]):
            after = packed[tensor]
            free = max(free, begins[after]) + lives.bytes[tensor] / self.link
            release = after
            while release < lives.turn - 1 and begins[release] < free:
                release += 1
            later = bisect_left(self.packs, release)
            release = self.packs[later] if later < len(self.packs) else lives.turn - 1
            found[tensor] = {
                "tensor": tensor,
                "decision": "offload",
                "offload_after": after,
                "release_after": release,
                "prefetch_before": need[tensor],
                "rebuilt": [],
            }
        free = begins[-1]
        for tensor in sorted(moved, key=lambda tensor: need[tensor], reverse=True):
            free = min(free, begins[need[tensor]]) - lives.bytes[tensor] / self.link
            before = need[tensor]
            while before > lives.turn and begins[before] > free:
                before -= 1
            earlier = bisect_right(self.unpacks, before) - 1
            if self.unpacks:
                before = min(need[tensor], self.unpacks[max(earlier, 0)])
            found[tensor]["prefetch_before"] = before

    def restore(self, best: Outcome, decisions: dict[int, dict[str, Any]]) -> tuple[Outcome, dict[int, dict[str, Any]]]:
        """Keeps again what the budget allows, dearest first."""
        end = time.monotonic() + IMPROVE_SECONDS
        by_cost = sorted(self.choice, key=lambda tensor: self.lives.bytes[tensor])
        costs = {tensor: self.cost(tensor) or 0.0 for tensor in by_cost}
        for tensor in sorted(by_cost, key=lambda tensor: -costs[tensor]):
            if time.monotonic() > end:
                break
            what = self.choice.pop(tensor)
            tried_decisions = self.decisions()
            tried = simulate(self.lives, tried_decisions)
            if tried.time_us <= best.time_us and self.allows(tried):
                best, decisions = tried, tried_decisions
            else:
                self.choice[tensor] = what
        return best, decisions
