"""Chooses a division of a joint graph that fits in the bytes left for it.

Candidates are PyTorch's own divisions at several of its settings, and least cuts for rising prices of a byte. Only bytes at the peak cost
anything, so weights follow the peak: after each cut, values alive at its peak become dearer and all others cheaper::

    weights    all alike     ->  cut, peak at t1  ->  dearer: values at t1  ->  cut, peak at t2  ->  ..

The prices are the same for every budget. Some prices between two of them are added for a budget, and for smaller ones on a fixed grid: on that grid,
a larger budget has every choice of a smaller one.

**Source**: prices of a relaxed limit, Everett 1963; adjusted in rounds, Held and Karp 1971.
"""

from __future__ import annotations

from dataclasses import dataclass

from .candidates import Candidates, Choice, time_of
from .cut import Pricing
from .graph import Division, Graph, simulate
from .moves import Moves

__all__ = ["Chooser"]

# Prices of a byte in terms of the time to recompute it, on average, and the rounds of weights at each. They are the same for every budget.
_PRICES = tuple(10.0 ** (power / 3) for power in range(-6, 10))
_TURNS = 3
# The prices tried between the last one that is too low for the room and the first one that is not.
_BETWEEN = 3
# Where no price of the ladder suits a room: the rounds at prices around the best one, and the factors from that to the next prices.
_ROUNDS = 10
_AROUND = (0.4, 1.0, 2.5)
# A search also looks at smaller rooms: the multiples of this share of the bytes of PyTorch's fastest division.
_GRID = 0.05
# The share by which the weights of values move in a round.
_MOVE = 0.4
# Our division must save this share of the extra time of PyTorch's, since predicted times are only this exact.
_BETTER = 0.1


class Chooser(Candidates):
    """Searches the divisions of one graph.

    Attributes
    ----------
    moves
        The offloaded values of divisions; None if all values stay on the device.
    """

    def __init__(self, graph: Graph, plain: tuple[str, frozenset[int]], loss: int = 0, calls: int = 1, later: int = 0) -> None:
        super().__init__(graph, plain, loss, calls, later)
        self.pricing: Pricing | None = None
        self.steps: list[_Step] = []
        self.smallest: Choice | None = None
        self.moves: Moves | None = None

    def fitting(self, room: float) -> Choice | None:
        """The fastest division found that fits; PyTorch's fastest if it fits."""
        if self.peak(self.plain) <= room:
            return self.theirs[0]
        self._search(room)
        # More bytes are never slower: a larger room has what is found for smaller ones.
        grid = _GRID * self.peak(self.plain)
        for step in range(int(room / grid), 0, -1):
            if not self._search(step * grid):
                break

        def fits(choice: Choice) -> bool:
            return self.peak(choice.division) <= room

        fast = min(filter(fits, self.theirs), key=time_of, default=None)
        own = min(filter(fits, self.ours.values()), key=time_of, default=None)
        best = own or fast if own is None or fast is None or self.saves(own.division, fast.division) else fast
        moved = None if self.moves is None else self.moves.fitting(self, room, best.division if best is not None else None)
        if moved is None or best is not None and not self.saves(moved, best.division):
            return best
        return Choice(moved, "offloading")

    def saves(self, one: Division, other: Division) -> bool:
        """Whether a division is faster than another one by more than the error of predicted times."""
        return other.time_us - one.time_us > max(_BETTER * (other.time_us - self.plain.time_us), 0.0)

    def levels(self) -> list[Division]:
        """PyTorch's fastest division, and the best ones for rising prices of a byte."""
        self._ladder()
        return [self.plain, *(step.choice.division for step in self.steps if step.choice is not None)]

    def least(self) -> Choice:
        """The division with the least computed peak. It is the same for every budget."""
        if self.smallest is None:
            self._ladder()
            found = [*self.theirs, *(step.choice for step in self.steps if step.choice is not None), *self._descend(0)]
            if self.moves is None:
                self.smallest = min(found, key=lambda one: self.peak(one.division) if self.calls > 1 else one.division.peak)
            else:
                self.smallest = Choice(self.moves.least(self, [one.division for one in found]), "offloading")
        return self.smallest

    def untried(self) -> Choice | None:
        """The division with the least computed peak, or else PyTorch's, of which Inductor has shown no bytes yet."""
        least = self.least(), min(self.theirs, key=lambda one: one.division.peak)
        return next((one for one in least if one.division.key not in self.seen), None)

    def _look(self, saved: frozenset[int]) -> Choice | None:
        found = self.ours.get(saved)
        if found is None:
            values = self.graph.values
            order, again = self.graph.backward_order(set(saved))
            if any(values[place].rerun == "never" and values[place].kind not in ("view", "part", "none") for place in again):
                return None
            if any(not values[place].saved for place in saved):
                return None
            found = self.ours[saved] = Choice(simulate(self.graph, saved, self.loss, (order, again)), "our cut")
        return found

    def _ladder(self) -> None:
        """Cuts at each price, from the lowest to the highest."""
        if not self.steps:
            self.pricing = Pricing(self.graph)
            weights = _Weights({}, {})
            for price in _PRICES:
                step = self._at(price * self.pricing.average, weights)
                weights = step.weights
                self.steps.append(step)

    def _search(self, room: float) -> bool:
        """Adds divisions that fit. Returns whether any does."""
        self._between(room)
        found = [choice for choice in (*self.theirs, *self.ours.values()) if self.peak(choice.division) <= room]
        if found:
            # Our cuts may differ from PyTorch's fastest division everywhere, though only a few bytes are too many.
            self._splice(self.plain.saved, min(found, key=time_of).division.saved, room)
        return bool(found)

    def _between(self, room: float) -> None:
        """Adds divisions at prices between two steps of the ladder."""
        self._ladder()
        fits = [step.choice is not None and self.peak(step.choice.division) <= room for step in self.steps]
        if not any(fits):
            self._descend(room)
        if not any(fits) or fits[0]:
            return
        high = fits.index(True)
        low, up = self.steps[high - 1], self.steps[high]
        for _ in range(_BETWEEN):
            step = self._at((low.price * up.price) ** 0.5, up.weights)
            if step.choice is not None and self.peak(step.choice.division) <= room:
                up = step
            else:
                low = step
        if low.choice is not None and up.choice is not None:
            self._splice(low.choice.division.saved, up.choice.division.saved, room)

    def _splice(self, more: frozenset[int], fewer: frozenset[int], room: float) -> None:
        """Divisions between two: values before a place are saved as in one of them, all others as in the other one.

        Layers that are alike change sides at the same price, so cuts alone would leave much of the room unused.
        """
        places = sorted(more ^ fewer)
        low, high = 0, len(places)
        while high - low > 1:
            middle = (low + high) // 2
            edge = places[middle]
            found = self._look(frozenset([place for place in fewer if place < edge] + [place for place in more if place >= edge]))
            if found is not None and self.peak(found.division) <= room:
                high = middle
            else:
                low = middle

    def _descend(self, room: float) -> list[Choice]:
        """Rounds at prices around the best one, until a division fits. Returns the best division of each round."""
        assert self.pricing is not None
        found: list[Choice] = []
        steps = [step for step in self.steps if step.choice is not None]
        if not steps:
            return found
        start = min(steps, key=lambda step: step.choice.division.peak if step.choice else 0)
        price, weights = start.price, start.weights
        for _ in range(_ROUNDS):
            cuts = ((self._look(self.pricing.cut(price * share, weights.saved, weights.again)), price * share) for share in _AROUND)
            looked = [(choice, at) for choice, at in cuts if choice is not None]
            if not looked:
                break
            choice, price = min(looked, key=lambda one: self.peak(one[0].division))
            found.append(choice)
            if self.peak(choice.division) <= room:
                break
            weights = weights.moved(self.graph, choice.division)
        return found

    def _at(self, price: float, weights: _Weights) -> _Step:
        """Rounds at one price. The step's choice is the best of them for this price."""
        assert self.pricing is not None
        best: Choice | None = None
        for _ in range(_TURNS):
            found = self._look(self.pricing.cut(price, weights.saved, weights.again))
            if found is None:
                break
            weights = weights.moved(self.graph, found.division)
            if best is None or _cost(found, price) < _cost(best, price):
                best = found
        return _Step(price, weights, best)


@dataclass
class _Weights:
    """By value, the share of its bytes that is paid for if it is saved (1 by default) or recomputed (0 by default)."""

    saved: dict[int, float]
    again: dict[int, float]

    def moved(self, graph: Graph, division: Division) -> _Weights:
        live = division.live
        saved: dict[int, float] = {}
        again: dict[int, float] = {}
        for place, value in enumerate(graph.values):
            if value.bytes and not value.backward:
                here, is_saved = place in live, place in division.saved
                saved[place] = (1 - _MOVE) * self.saved.get(place, 1.0) + _MOVE * (1.0 if here or not is_saved else 0.1)
                again[place] = (1 - _MOVE) * self.again.get(place, 0.0) + _MOVE * (1.0 if here and not is_saved else 0.0)
        return _Weights(saved, again)


@dataclass
class _Step:
    price: float
    weights: _Weights
    choice: Choice | None


def _cost(choice: Choice, price: float) -> float:
    return choice.division.time_us + price * choice.division.peak
