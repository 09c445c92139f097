"""Chooses a division of a joint graph that fits in the bytes left for it.

Candidates are PyTorch's own divisions at several of its settings, and least cuts for rising prices of a byte. Only bytes at the peak cost
anything, so prices follow the peak: after each cut, values alive at its peak become dearer and all others cheaper::

    prices     all alike     ->  cut, peak at t1  ->  dearer: values at t1  ->  cut, peak at t2  ->  ..

**Source**: prices of a relaxed limit, Everett 1963; adjusted in rounds, Held and Karp 1971.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from .cut import Pricing
from .graph import Division, Graph, simulate

__all__ = ["Choice", "Chooser"]

# The most rounds of prices, and the seconds after which no round begins.
_ROUNDS, _SECONDS = 16, 2.5
# The share by which the weights of values move in a round.
_MOVE = 0.4
# Prices of the first round in microseconds per byte, and the factors from the best price to the prices of the next round.
_PRICES = [10.0 ** (power / 3) for power in range(-24, -8)]
_AROUND = (0.4, 1.0, 2.5)
# Our division must save this share of the extra time of PyTorch's, since predicted times are only this exact.
_BETTER = 0.1


@dataclass
class Choice:
    """A division, and the method that found it."""

    division: Division
    of: str


class Chooser:
    """The candidate divisions of one graph.

    Attributes
    ----------
    plain
        PyTorch's fastest division.
    seen
        Bytes of the forward and backward pass of each division whose graphs were lowered. These are exact. The ratios of the last one to the
        computed bytes correct all other divisions.
    """

    def __init__(self, graph: Graph, theirs: Iterable[tuple[str, frozenset[int]]], beside: int = 0) -> None:
        self.graph = graph
        self.beside = beside
        found = [(of, saved) for of, saved in theirs]
        self.plain = simulate(graph, found[0][1], beside)
        # At a low share, PyTorch saves inputs that the program changes before the backward pass. Its default division is always a candidate.
        self.theirs = [
            Choice(simulate(graph, saved, beside) if number else self.plain, of)
            for number, (of, saved) in enumerate(found)
            if not number or all(graph.values[place].saved for place in saved)
        ]
        self.ours: dict[frozenset[int], Choice] = {}
        self.pricing: Pricing | None = None
        self.seen: dict[frozenset[int], tuple[int, int]] = {}
        self.ratios = (1.0, 1.0)

    def note(self, division: Division, forward: int, backward: int) -> None:
        """Notes the bytes of a division's lowered graphs."""
        self.seen[division.saved] = (forward, backward)
        self.ratios = (forward / max(division.forward, 1), backward / max(division.backward - division.rest, 1))

    def peak(self, division: Division) -> int:
        """Bytes at a division's peak: exact if its graphs were lowered, else computed and corrected."""
        seen = self.seen.get(division.saved)
        if seen is None:
            computed = division.forward, division.backward - division.rest
            seen = int(computed[0] * self.ratios[0]), int(computed[1] * self.ratios[1])
        return max(seen[0], seen[1] + division.rest, division.start)

    def fitting(self, room: float) -> Choice | None:
        """The fastest division found that fits; PyTorch's fastest if it fits."""
        if self.peak(self.plain) <= room:
            return self.theirs[0]
        self._search(room)
        fast = min((one for one in self.theirs if self.peak(one.division) <= room), key=_time, default=None)
        own = min((one for one in self.ours.values() if self.peak(one.division) <= room), key=_time, default=None)
        if own is None or fast is None:
            return own or fast
        cost, gain = fast.division.time_us - self.plain.time_us, fast.division.time_us - own.division.time_us
        return own if gain > _BETTER * max(cost, 0.0) and gain > 0 else fast

    def least(self) -> Choice:
        """The division found with the least peak."""
        self._search(0)
        return min([*self.theirs, *self.ours.values()], key=lambda one: self.peak(one.division))

    def _look(self, saved: frozenset[int]) -> Division | None:
        found = self.ours.get(saved)
        if found is None:
            values = self.graph.values
            _, again = self.graph.backward_order(set(saved))
            if any(values[place].rerun == "never" and values[place].kind not in ("view", "part", "none") for place in again):
                return None
            if any(not values[place].saved for place in saved):
                return None
            found = self.ours[saved] = Choice(simulate(self.graph, saved, self.beside), "our cut")
        return found.division

    def _search(self, room: float) -> None:
        if self.pricing is None:
            self.pricing = Pricing(self.graph)
        started = time.monotonic()
        saved: dict[int, float] = {}
        again: dict[int, float] = {}
        prices: list[float] = _PRICES
        for turn in range(_ROUNDS):
            if turn > 3 and time.monotonic() - started > _SECONDS:
                break
            looked = [(division, price) for price in prices if (division := self._look(self.pricing.cut(price, saved, again))) is not None]
            if not looked:
                return
            division, best = min(looked, key=lambda one: self._rank(one[0], room))
            prices = [best * share for share in _AROUND]
            live = division.live
            for place in range(len(self.graph.values)):
                if self.graph.values[place].bytes and not self.graph.values[place].backward:
                    here = place in live
                    is_saved = place in division.saved
                    saved[place] = (1 - _MOVE) * saved.get(place, 1.0) + _MOVE * (1.0 if here or not is_saved else 0.1)
                    again[place] = (1 - _MOVE) * again.get(place, 0.0) + _MOVE * (1.0 if here and not is_saved else 0.0)

    def _rank(self, division: Division, room: float) -> tuple[bool, float]:
        peak = self.peak(division)
        return (peak > room, division.time_us if peak <= room else peak)


def _time(choice: Choice) -> float:
    return choice.division.time_us
