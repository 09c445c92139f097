"""Chooses a division of a joint graph within a room of bytes.

PyTorch's own divisions, at several of its settings, are candidates. Beside them are least cuts for rising prices of a byte. A byte is dear only
where memory peaks, so prices follow the peak: after each cut, what exists at its peak becomes dearer and the rest cheaper::

    prices     all alike     ->  cut, peak at t1  ->  dearer: what exists at t1  ->  cut, peak at t2  ->  ..

**Source**: prices of a relaxed limit, Everett 1963; as bounds that move, Held and Karp 1971.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from .cut import Pricing
from .graph import Division, Graph, simulate

__all__ = ["Choice", "Chooser"]

# Rounds of prices, and seconds after which no round begins.
_ROUNDS, _SECONDS = 16, 2.5
# How far shares move in a round.
_MOVE = 0.4
# Microseconds a byte: those of the first round, and what those of later rounds are of the best one's.
_PRICES = [10.0 ** (power / 3) for power in range(-24, -8)]
_AROUND = (0.4, 1.0, 2.5)
# Ours must save this share of what PyTorch's division costs beyond its fastest one: the model is no better.
_BETTER = 0.1


@dataclass
class Choice:
    """A division, and how it was found."""

    division: Division
    of: str


class Chooser:
    """The divisions of one graph that were looked at.

    Attributes
    ----------
    plain
        PyTorch's fastest division.
    seen
        Bytes of the forward and of the backward pass, of divisions whose graphs were lowered: these are exact, and the last one's ratios to what was
        computed hold for the others.
    """

    def __init__(self, graph: Graph, theirs: Iterable[tuple[str, frozenset[int]]], beside: int = 0) -> None:
        self.graph = graph
        self.beside = beside
        found = [(of, saved) for of, saved in theirs]
        self.plain = simulate(graph, found[0][1], beside)
        # At a low share, PyTorch saves inputs that the program has changed by the time of the backward pass. Its default stays as it is.
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
        """Notes what lowered copies of a division's graphs take."""
        self.seen[division.saved] = (forward, backward)
        self.ratios = (forward / max(division.forward, 1), backward / max(division.backward - division.rest, 1))

    def peak(self, division: Division) -> int:
        """Bytes at a division's peak, as far as is known."""
        seen = self.seen.get(division.saved)
        if seen is None:
            computed = division.forward, division.backward - division.rest
            seen = int(computed[0] * self.ratios[0]), int(computed[1] * self.ratios[1])
        return max(seen[0], seen[1] + division.rest, division.start)

    def fitting(self, room: float) -> Choice | None:
        """The fastest division that fits, if one is found; PyTorch's fastest where it fits."""
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
        """The division with the least peak that is found."""
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
